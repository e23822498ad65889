"""What a device learns from in a round: its positives and fresh negatives, shuffled.

The samples of all devices of a cohort are drawn at once. They depend only on (seed, round, user, draw), never on the
other devices in the cohort.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from federec import streams
from federec.data.split import Distinct, Split

_USERS = 1 << 10  # processed together


@dataclass(frozen=True)
class Devices:
    """Every device's interactions as tensors: what it trains on, what it never draws as a negative, and its history.
    Arrays as long as the data have 32-bit numbers."""

    n_items: int
    ptr: Tensor
    """Device u has `train[ptr[u]:ptr[u + 1]]`; likewise `closed_ptr` and `gaps`, `distinct_ptr` and `distinct`."""
    train: Tensor
    """int32 item codes, oldest first; an item that the data repeats is there several times."""
    closed_ptr: Tensor
    gaps: Tensor
    """int32: for the k-th closed item e_k of a device (sorted) e_k - k, the number of open items below it."""
    distinct_ptr: Tensor
    distinct: Tensor
    """int32: the items of `train` once each; `train` itself where the data repeats none."""
    ratings: Tensor | None = None
    """Ratings of the distinct items, where the data has them."""
    moments: Tensor | None = None
    """int32: rise with the times of the distinct items; equal where the times are, and the order was drawn."""
    numbers: Tensor | None = None
    """[N] numbers of the devices in the random streams, where they are not 0..N-1."""

    @staticmethod
    def of(split: Split, close_held_out: bool, device: torch.device | str = "cpu") -> Devices:
        """`close_held_out`: never draw validation and test items as negatives (the leak of `paper`)."""
        closed_ptr, gaps = split.history(close_held_out)
        interactions = len(split.train) + close_held_out * (len(split.valid) + len(split.test))
        repeats = len(gaps) < interactions  # only then is there something to look for
        found = split.distinct if repeats else Distinct(split.ptr, split.train, split.ratings, split.moments)
        for start in range(0, len(closed_ptr) - 1, _USERS):  # in blocks, so that only the result is large
            ptr = closed_ptr[start : start + _USERS + 1]
            gaps[ptr[0] : ptr[-1]] -= np.arange(ptr[0], ptr[-1]) - np.repeat(ptr[:-1], np.diff(ptr))

        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(device)

        train = tensor(split.ptr), tensor(split.train)
        distinct = train if found.items is split.train else (tensor(found.ptr), tensor(found.items))
        others = (None if array is None else tensor(array) for array in (found.ratings, found.moments, split.numbers))
        return Devices(split.data.n_items, *train, tensor(closed_ptr), tensor(gaps), *distinct, *others)

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def numbered(self, users: Tensor) -> Tensor:
        """The users' numbers in the random streams."""
        return users if self.numbers is None else self.numbers[users]

    def lengths(self, users: Tensor, negatives: int) -> Tensor:
        """The number of samples of each device in a round; a device that has every item draws no negatives."""
        positives = self.ptr[users + 1] - self.ptr[users]
        closed = self.closed_ptr[users + 1] - self.closed_ptr[users]
        return positives * torch.where(closed < self.n_items, 1 + negatives, 1)

    def keys(self, seed: int, round_: int, users: Tensor) -> Tensor:
        """Keys of the users' random streams in a round."""
        keys: Tensor = streams.keys(seed, round_, self.numbered(users))
        return keys

    def history(self, users: Tensor) -> History:
        """What the users have trained on."""
        items = _ragged(self.distinct_ptr, self.distinct, users, 0).long()
        return History(users, items, self.distinct_ptr[users + 1] - self.distinct_ptr[users], self)

    @cached_property
    def spare(self) -> dict[Any, list[Any]]:
        """Memory that kernels use again in later rounds, by what it is for."""
        return {}

    @cached_property
    def longest(self) -> int:
        """The most interactions that a device trains on."""
        return int(self.ptr.diff().max()) if len(self) else 0

    @cached_property
    def crammed(self) -> bool:
        """Whether some device has every item."""
        return bool((self.closed_ptr.diff() >= self.n_items).any())

    @cached_property
    def pairs(self) -> Tensor:
        """item * devices + user of every distinct training pair, sorted: the users of each item, item by item."""
        owner = torch.repeat_interleave(torch.arange(len(self), device=self.ptr.device), self.distinct_ptr.diff())
        return (self.distinct.long() * len(self) + owner).sort().values


@dataclass(frozen=True)
class History:
    """What a cohort has trained on: row c holds device c's distinct items, oldest first, padded on the right."""

    users: Tensor
    items: Tensor
    counts: Tensor
    everyone: Devices = field(repr=False)

    def of(self, some: Tensor | slice) -> History:
        """That of some devices, by their places."""
        counts = self.counts[some]
        longest = int(counts.max()) if len(counts) else 0
        return History(self.users[some], self.items[some, :longest], counts, self.everyone)

    @property
    def real(self) -> Tensor:
        """[C, L]: False for padding."""
        return self.age >= 0

    @property
    def age(self) -> Tensor:
        """[C, L]: the number of newer items of the device; 0 for its newest item."""
        return self.counts[:, None] - 1 - torch.arange(self.items.shape[1], device=self.items.device)

    @property
    def ratings(self) -> Tensor:
        """[C, L] ratings of the items."""
        everyone = self.everyone
        assert everyone.ratings is not None
        return _ragged(everyone.distinct_ptr, everyone.ratings, self.users, 0)

    def reordered(self, key: Tensor) -> History:
        """With items of the same time in an order of its own for each key [C] of random numbers."""
        everyone = self.everyone
        if everyone.moments is None:
            return self
        moments = _ragged(everyone.distinct_ptr, everyone.moments, self.users, torch.iinfo(torch.int32).max)
        order = streams.bits(key[:, None], streams.TIES + self.items).argsort(1)
        order = order.gather(1, moments.gather(1, order).argsort(stable=True, dim=1))
        return replace(self, items=self.items.gather(1, order))

    def peers(self, most: int) -> Tensor:
        """[C, L, most]: other users who also have the item, -1 where there are no more. If there are many, a window of
        the list of those users that begins at random: a pure function of (user, item)."""
        devices, pairs = len(self.everyone), self.everyone.pairs
        first = torch.searchsorted(pairs, self.items * devices)
        others = torch.searchsorted(pairs, (self.items + 1) * devices) - first - 1
        own = torch.searchsorted(pairs, self.items * devices + self.users[:, None]) - first
        key = streams.keys(0, streams.ONCE, self.users)[:, None]
        begin = streams.below(streams.bits(key, streams.MATCHING + self.items), others.clamp(min=1))
        count = torch.arange(most, device=pairs.device)
        at = (begin[:, :, None] + count) % others.clamp(min=1)[:, :, None]
        at = at + (at >= own[:, :, None]).long() + first[:, :, None]  # skip the user itself
        there = self.real[:, :, None] & (count < others[:, :, None])
        return torch.where(there, pairs[at.clamp(max=len(pairs) - 1)] % devices, -1)


@dataclass(frozen=True)
class Samples:
    """A cohort's samples of one round, before shuffling: row c holds device c's, padded on the right."""

    items: Tensor
    labels: Tensor
    counts: Tensor
    """Samples of each device; the rest of its row is padding."""
    key: Tensor
    """Stream key of each device for this round."""

    def order(self, epoch: int) -> Tensor:
        """Shuffled positions [C, S] of an epoch: by random key, ties by position, padding last."""
        position = torch.arange(self.items.shape[1], device=self.items.device)
        draw = streams.SHUFFLE + (epoch << 32) + position
        key = (streams.bits(self.key[:, None], draw) >> 33) & 0x7FFF_FFFF
        key = (key << 32) | position
        key.masked_fill_(position >= self.counts[:, None], torch.iinfo(torch.int64).max)
        if key.device.type == "cpu":  # numpy sorts rows of integers several times faster than torch
            key.numpy().sort(axis=1)
        else:
            key = key.sort(dim=1).values
        order: Tensor = key.bitwise_and_(0x7FFF_FFFF).clamp_(max=len(position) - 1)
        return order


def _ragged(ptr: Tensor, values: Tensor, rows: Tensor, fill: int) -> Tensor:
    """Rows of a CSR array, padded with `fill` to the longest."""
    start, count = ptr[rows], ptr[rows + 1] - ptr[rows]
    column = torch.arange(int(count.max()) if len(count) else 0, device=ptr.device)
    index = (start[:, None] + column).clamp_(max=max(len(values) - 1, 0))
    return values[index].masked_fill_(column >= count[:, None], fill)


def draw(devices: Devices, users: Tensor, seed: int, round_: int, negatives: int) -> Samples:
    """Each positive followed by its fresh negatives, uniform over the items open to the device.

    The r-th open item is r + #{k : e_k - k <= r}: one draw per negative, no rejection, no (users, items) table.
    A device that has every item draws no negatives.
    """
    positives = _ragged(devices.ptr, devices.train, users, 0).long()
    key = devices.keys(seed, round_, users)
    gaps = _ragged(devices.closed_ptr, devices.gaps, users, devices.n_items + 1).long()
    open_items = devices.n_items - (devices.closed_ptr[users + 1] - devices.closed_ptr[users])
    full = open_items <= 0
    each = 0 if devices.crammed and bool(full.all()) else negatives

    slot = torch.arange(positives.shape[1] * each, device=users.device)
    rank = streams.below(streams.bits(key[:, None], streams.NEGATIVES + slot), open_items[:, None])
    drawn = rank + torch.searchsorted(gaps, rank, right=True)
    drawn = drawn.clamp_(max=devices.n_items - 1).view(*positives.shape, each)
    items = torch.cat([positives[:, :, None], drawn], 2).flatten(1)
    labels = torch.zeros(items.shape, device=users.device)
    labels[:, :: 1 + each] = 1.0
    if each and devices.crammed:  # keep only the positives of a device that has every item
        items[full, : positives.shape[1]] = positives[full]
        labels[full] = 1.0
    return Samples(items, labels, devices.lengths(users, negatives), key)
