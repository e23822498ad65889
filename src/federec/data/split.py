"""Leave-one-out: each user's newest item is the test, the one before it the validation, the rest training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from federec import streams
from federec.data.interactions import Interactions
from federec.errors import UserError

NEEDED = 3
"""Distinct items a user needs to be evaluated: one each for training, validation and test."""


@dataclass(frozen=True)
class Split:
    """Every interaction of `data`, once: in `train`, in `valid` or in `test`."""

    data: Interactions
    ptr: NDArray[np.int64]
    """[n_users + 1]: user u's training items are `train[ptr[u]:ptr[u + 1]]`."""
    train: NDArray[np.int32]
    """Item codes, each user's oldest first."""
    valid: NDArray[np.int32]
    """[n_users] item code; -1 where the user is not evaluated."""
    test: NDArray[np.int32]
    """[n_users] item code; -1 where the user is not evaluated."""

    @property
    def evaluated(self) -> NDArray[np.int64]:
        """Codes of the users that have a validation and a test item."""
        return np.flatnonzero(self.test >= 0)

    def history(self, with_held_out: bool) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Each user's items in ascending order, as (offsets, item codes): of training, or of everything.

        Sorted because what comes next is always a search: is this item one of the user's?
        """
        users = np.repeat(np.arange(self.data.n_users), np.diff(self.ptr))
        items = self.train
        if with_held_out:
            held = self.evaluated
            users = np.concatenate([users, held, held])
            items = np.concatenate([items, self.valid[held], self.test[held]])
        return _offsets(users, self.data.n_users), items[np.lexsort((items, users))]


def leave_one_out(data: Interactions, seed: int = 0) -> Split:
    """Hold out each user's two newest items; some user must have that many."""
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
    order = _oldest_first(data, seed, numbers)
    users, items = data.users[order], data.items[order]
    ptr = _offsets(users, data.n_users)
    held = np.flatnonzero(np.diff(ptr) >= NEEDED)
    last = ptr[held + 1] - 1
    test = np.full(data.n_users, -1, np.int32)
    valid = test.copy()
    test[held], valid[held] = items[last], items[last - 1]
    trains = np.ones(len(items), bool)
    trains[last] = trains[last - 1] = False
    return Split(data, _offsets(users[trains], data.n_users), items[trains], valid, test)


def _oldest_first(data: Interactions, seed: int, numbers: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Rows sorted by user, then from the oldest to the newest."""
    if data.times is not None:
        return np.lexsort((-np.arange(len(data)), data.times, data.users))
    users = data.users.astype(np.int64) if numbers is None else numbers[data.users]
    key = streams.keys(seed, streams.ONCE, users)
    return np.lexsort((streams.bits(key, streams.HOLDOUT + data.items.astype(np.int64)), data.users))


def _offsets(users: NDArray[np.integer], n_users: int) -> NDArray[np.int64]:
    """CSR offsets of rows sorted (or sortable) by user."""
    return np.concatenate([[0], np.cumsum(np.bincount(users, minlength=n_users))]).astype(np.int64)
