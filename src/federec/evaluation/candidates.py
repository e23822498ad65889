"""The items a device ranks its held-out item against: 99 it never touched for validation, 99 others for test. Where
several items are held out, the oldest of each part is ranked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from federec import streams
from federec.data.split import Split
from federec.errors import UserError
from federec.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

SAMPLED = 99

_USERS = 1 << 11  # processed together


@dataclass(frozen=True)
class Candidates:
    """int32 item codes [E, 1 + 99]: the held-out item first, -1 where a user has none, or too few untouched items.
    Row e belongs to user `users[e]`."""

    users: Tensor
    valid: Tensor
    test: Tensor


class Drawn(NamedTuple):
    """`Candidates` as arrays."""

    users: NDArray[np.int64]
    valid: NDArray[np.int32]
    test: NDArray[np.int32]


def sample(split: Split, seed: int, count: int = SAMPLED, most: int | None = None) -> Candidates:
    """What `drawn` gives, as tensors."""
    return Candidates(*map(torch.from_numpy, drawn(split, seed, count, most)))


def drawn(split: Split, seed: int, count: int = SAMPLED, most: int | None = None) -> Drawn:
    """Draw each evaluated user's candidates, once per run, uniformly and without replacement; with `most`, for at most
    this many users, drawn at random.

    Validation takes the first `count` of 2 * count distinct untouched items, test the last: disjoint
    unless a user has fewer than 2 * count.
    """
    users = split.evaluated
    if most is not None:
        key = streams.bits(streams.keys(seed, streams.ONCE, split.number(users)), streams.EVALUATED)
        users = users[np.sort(np.argsort(key, kind="stable")[:most])]
        if min(split.valid.first(users).max(), split.test.first(users).max()) < 0:
            raise UserError(f"none of the {most} users drawn has both parts to evaluate; raise --evaluate-users")
    valid, test = (np.empty((len(users), 1 + count), np.int32) for _ in range(2))
    valid[:, 0], test[:, 0] = split.valid.first(users), split.test.first(users)
    for start in range(0, len(users), _USERS):  # in blocks, so that only the result is large
        block = slice(start, start + _USERS)
        valid[block, 1:], test[block, 1:] = _draw(split, users[block], seed, count)
    return Drawn(users, valid, test)


def _draw(split: Split, users: np.ndarray, seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The users' untouched items for validation and for test, [C, count] each."""
    ptr, closed = split.history(True, users)
    untouched = split.data.n_items - np.diff(ptr)
    drawn = _distinct(streams.keys(seed, streams.ONCE, split.number(users)), untouched, 2 * count)

    # From ranks among the untouched items to item codes, as in cohort.draw, by one search over all users.
    rank = np.arange(len(closed)) - np.repeat(ptr[:-1], np.diff(ptr))
    row = np.arange(len(users))
    stride = split.data.n_items + 1
    gaps = np.repeat(row, np.diff(ptr)) * stride + closed - rank
    items = drawn + np.searchsorted(gaps, row[:, None] * stride + drawn, side="right") - ptr[:-1, None]

    have = np.minimum(untouched, 2 * count)
    column = np.arange(count)
    first = np.where(column < have[:, None], items[:, :count], -1)
    from_end = have[:, None] - 1 - column
    last = np.take_along_axis(items, np.maximum(from_end, 0), 1)
    return first, np.where(from_end >= 0, last, -1)


_FEW = 32  # users, below which one after the other takes less time than all at once


def _without_repeats(draws: list[int], tops: list[int]) -> list[int]:
    """One user's draws, where a number drawn before is replaced by the top of its range."""
    seen: dict[int, None] = {}
    for draw, top in zip(draws, tops, strict=True):
        seen[top if draw in seen else draw] = None
    return [*seen]


def _distinct(keys: np.ndarray, bounds: np.ndarray, count: int) -> np.ndarray:
    """[E, count] distinct numbers below each bound in random order (Floyd's algorithm, all users at once).

    Where bound < count only the first `bound` columns have a meaning.
    """
    # The i-th draw is from 0..last; a number drawn before is replaced by `last` itself.
    last = np.maximum(bounds - count, 0)[:, None] + np.arange(count)
    chosen = streams.below(streams.bits(keys[:, None], streams.CANDIDATES + np.arange(count)), last + 1)
    if len(keys) < _FEW:  # a device ranks for its own users in each round
        for row, tops in zip(chosen, last.tolist(), strict=True):
            row[:] = _without_repeats(row.tolist(), tops)
    else:
        for i in range(1, count):
            taken = (chosen[:, :i] == chosen[:, i, None]).any(1)
            chosen[taken, i] = last[taken, i]
    shuffle = streams.bits(keys[:, None], streams.CANDIDATES + count + np.arange(count))
    shuffle = np.where(np.arange(count) < bounds[:, None], shuffle, np.iinfo(np.int64).max)
    return np.take_along_axis(chosen, shuffle.argsort(1, kind="stable"), 1)
