"""What one device learns from in a round: the samples of `cohort.draw`, of one device and in NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from federec import streams
from federec.data.split import Split

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """The samples of one device, before shuffling."""

    items: Integers
    labels: NDArray[np.float32]
    key: Integers
    """[1] key of the device's random stream in the round."""

    def order(self, epoch: int = 0) -> Integers:
        """Shuffled positions of an epoch: by random key, ties by position."""
        draw = streams.SHUFFLE + (epoch << 32) + np.arange(len(self.items))
        found: Integers = np.argsort((streams.bits(self.key, draw) >> 33) & 0x7FFF_FFFF, kind="stable")
        return found


def draw(split: Split, user: int, seed: int, round_: int, negatives: int, close_held_out: bool) -> Samples:
    """Each positive of a user followed by its fresh negatives."""
    positives = split.train[split.ptr[user] : split.ptr[user + 1]].astype(np.int64)
    users = np.array([user])
    closed = split.history(close_held_out, users)[1]
    key = streams.keys(seed, round_, split.number(users))
    open_ = split.data.n_items - len(closed)
    if open_ <= 0:  # a device that has every item draws no negatives
        return Samples(positives, np.ones(len(positives), np.float32), key)
    gaps = closed - np.arange(len(closed))
    slots = np.arange(len(positives) * negatives)
    rank = streams.below(streams.bits(key, streams.NEGATIVES + slots), open_)
    drawn = rank + np.searchsorted(gaps, rank, side="right")
    items = np.concatenate([positives[:, None], drawn.reshape(len(positives), negatives)], 1)
    labels = np.zeros(items.shape, np.float32)
    labels[:, 0] = 1.0
    return Samples(items.ravel(), labels.ravel(), key)
