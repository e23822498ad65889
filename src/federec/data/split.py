"""Leave-one-out: each user's newest item is for test, the one before it for validation, the rest for training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from federec import streams
from federec.data.interactions import Interactions
from federec.errors import UserError

NEEDED = 3
"""Distinct items a user needs to be evaluated: one each for training, validation and test."""

_USERS, _ROWS = 1 << 10, 1 << 20  # processed at a time


@dataclass(frozen=True)
class Split:
    """Every interaction of `data` is in exactly one part: in `train`, in `valid` or in `test`."""

    data: Interactions
    ptr: NDArray[np.int64]
    """[n_users + 1]: user u's training items are `train[ptr[u]:ptr[u + 1]]`."""
    train: NDArray[np.int32]
    """Item codes, each user's oldest first."""
    valid: NDArray[np.int32]
    """[n_users] item code; -1 where the user is not evaluated."""
    test: NDArray[np.int32]
    """[n_users] item code; -1 where the user is not evaluated."""
    ratings: NDArray[np.float32] | None = None
    """Ratings of the training items, where the data has them."""
    numbers: NDArray[np.int64] | None = None
    """[n_users] numbers of the users in the random streams, where these are not their codes."""

    def number(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of these users in the random streams."""
        return users if self.numbers is None else self.numbers[users]

    @property
    def evaluated(self) -> NDArray[np.int64]:
        """Codes of the users that have a validation and a test item."""
        return np.flatnonzero(self.test >= 0)

    def history(
        self, with_held_out: bool, users: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Items of all users, or of the given ones, in ascending order, as (offsets, item codes): those of training, or
        all.

        They are sorted because callers search them: is this item one of the user's?
        """
        users = np.arange(self.data.n_users) if users is None else users
        held = (self.test[users] >= 0) & with_held_out
        ptr = _offsets(self.ptr[users + 1] - self.ptr[users] + 2 * held)
        items = np.empty(ptr[-1], np.int32)
        n_items = self.data.n_items
        for start in range(0, len(users), _USERS):  # in blocks, so that only the result is large
            block = users[start : start + _USERS]
            counts = self.ptr[block + 1] - self.ptr[block]
            owner = np.repeat(np.arange(len(block)), counts)
            shift = self.ptr[block] - (np.cumsum(counts) - counts)
            parts = [owner * n_items + self.train[np.arange(len(owner)) + np.repeat(shift, counts)]]
            evaluated = np.flatnonzero(held[start : start + _USERS])
            parts += [evaluated * n_items + part[block[evaluated]] for part in (self.valid, self.test)]
            items[ptr[start] : ptr[start + len(block)]] = np.sort(np.concatenate(parts)) % n_items
        return ptr, items


def leave_one_out(data: Interactions, seed: int = 0) -> Split:
    """Hold out each user's two newest items; at least one user must have enough items."""
    split = hold_out(data, seed)
    if not len(split.evaluated):
        raise UserError(
            f"no user of '{data.name}' has {NEEDED} distinct items, so nothing can be held out for "
            "validation and test; use data with longer histories"
        )
    return split


def hold_out(data: Interactions, seed: int = 0, numbers: NDArray[np.int64] | None = None) -> Split:
    """Hold out each user's two newest items, where a user has more than two.

    Among equal times the first row of the source counts as the newest, as in the published code
    (pandas' `rank(method="first", ascending=False)`). Without timestamps the order is random, a pure
    function of (seed, user, item); `numbers` are the users' in the random streams, where their codes are not.
    A user with fewer than three items trains but is not evaluated.
    """
    users, items, ratings = data.users, data.items, data.ratings
    if not _in_order(data):
        order = _oldest_first(data, seed, numbers)
        users, items, ratings = users[order], items[order], None if ratings is None else ratings[order]
    ptr = np.searchsorted(users, np.arange(data.n_users + 1, dtype=users.dtype))
    counts = np.diff(ptr)
    held = np.flatnonzero(counts >= NEEDED)
    last = ptr[held + 1] - 1
    test = np.full(data.n_users, -1, np.int32)
    valid = test.copy()
    test[held], valid[held] = items[last], items[last - 1]
    trains = np.ones(len(items), bool)
    trains[last] = trains[last - 1] = False
    offsets = _offsets(counts - 2 * (counts >= NEEDED))
    return Split(data, offsets, items[trains], valid, test, None if ratings is None else ratings[trains], numbers)


def _in_order(data: Interactions) -> bool:
    """Whether the rows are already in the order of `_oldest_first`, as in large data: then nothing needs to be sorted.
    Equal times are out of order, because there the first row counts as the newest."""
    if data.times is None:
        return False
    for start in range(0, len(data), _ROWS):
        rows = slice(start, start + _ROWS + 1)
        users, times = np.diff(data.users[rows]), np.diff(data.times[rows])
        if not ((users > 0) | ((users == 0) & (times > 0))).all():
            return False
    return True


def _oldest_first(data: Interactions, seed: int, numbers: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Rows sorted by user, then from the oldest to the newest."""
    if data.times is not None:
        return np.lexsort((-np.arange(len(data)), data.times, data.users))
    users = data.users.astype(np.int64) if numbers is None else numbers[data.users]
    key = streams.keys(seed, streams.ONCE, users)
    return np.lexsort((streams.bits(key, streams.HOLDOUT + data.items.astype(np.int64)), data.users))


def _offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The beginning of each user's part, and the end of the last one."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
