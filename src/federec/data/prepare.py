"""From the rows of a source to `Interactions`: filter, k-core, codes, duplicates. It works only on arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from federec.data.interactions import Ids, Interactions
from federec.errors import UserError

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """Rows in the order of the source, repeated pairs included; `user_ids[users]` are the labels."""

    users: NDArray[np.integer[Any]]
    items: NDArray[np.integer[Any]]
    user_ids: Ids
    item_ids: Ids
    times: NDArray[np.float64] | None = None
    ratings: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.users)

    def where(self, keep: Mask | NDArray[np.int64]) -> Rows:
        """Some of the rows, in the given order."""
        return replace(
            self,
            users=self.users[keep],
            items=self.items[keep],
            times=None if self.times is None else self.times[keep],
            ratings=None if self.ratings is None else self.ratings[keep],
        )


def prepare(rows: Rows, name: str, sha256: str = "", min_interactions: int = 0, k_core: int = 0) -> Interactions:
    """Filter, code by first appearance, merge repeated pairs: in the order that the published counts assume."""
    if min_interactions > 0:
        rows = _long_histories(rows, name, min_interactions)
    if k_core > 0:
        rows = _core(rows, name, k_core)
    users, user_ids = _code(rows.users, rows.user_ids)
    items, item_ids = _code(rows.items, rows.item_ids)
    coded = replace(rows, users=users, items=items)
    kept = coded.where(_one_row_per_pair(coded)) if _repeats(coded) else coded
    return Interactions(
        name=name,
        users=kept.users.astype(np.int32),
        items=kept.items.astype(np.int32),
        user_ids=user_ids,
        item_ids=item_ids,
        times=kept.times,
        ratings=kept.ratings,
        sha256=sha256,
        source_rows=len(rows),
    )


def _long_histories(rows: Rows, name: str, least: int) -> Rows:
    """The rows of users with at least `least` rows. Rows are counted, not distinct items, and only once."""
    counts = np.bincount(rows.users)
    if counts.max() < least:
        raise UserError(
            f"no user of '{name}' has {least} rows (the longest history has {counts.max()}); lower --min-interactions"
        )
    return rows.where(counts[rows.users] >= least)


def _core(rows: Rows, name: str, k: int) -> Rows:
    """The largest set of rows in which every user has k distinct items and every item k distinct users."""
    n_items = int(rows.items.max()) + 1
    pairs = np.unique(rows.users.astype(np.int64) * n_items + rows.items)
    users, items = np.divmod(pairs, n_items)
    while len(users):
        keep = (np.bincount(users)[users] >= k) & (np.bincount(items)[items] >= k)
        if keep.all():
            break
        users, items = users[keep], items[keep]
    else:
        raise UserError(f"the {k}-core of '{name}' is empty; lower --k-core")
    return rows.where(np.isin(rows.users, users) & np.isin(rows.items, items))


def _code(codes: NDArray[np.integer[Any]], ids: Ids) -> tuple[NDArray[np.integer[Any]], Ids]:
    """Codes 0..n-1 in order of first appearance, and the labels in that order."""
    first = np.full(len(ids), len(codes))
    first[codes[::-1]] = np.arange(len(codes))[::-1]  # for a repeated index the last assignment stays
    order = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(codes))]
    new = np.empty(len(ids), np.int32)
    new[order] = np.arange(len(order))
    return new[codes], ids[order]


def _pairs(rows: Rows) -> NDArray[np.int64]:
    """A number for each row's (user, item) pair."""
    pairs = rows.users.astype(np.int64)
    pairs *= int(rows.items.max()) + 1
    pairs += rows.items
    return pairs


def _repeats(rows: Rows) -> bool:
    """Whether some pair has several rows. If none has, as in most data, nothing needs to be sorted by time."""
    pairs = _pairs(rows)
    pairs.sort()
    return bool((pairs[1:] == pairs[:-1]).any())


def _one_row_per_pair(rows: Rows) -> NDArray[np.int64]:
    """The newest row of each (user, item) pair; the first among equal times, or without times."""
    pairs = _pairs(rows)
    newest_first = (pairs,) if rows.times is None else (-rows.times, pairs)
    order = np.lexsort(newest_first)
    starts = np.diff(pairs[order], prepend=-1) != 0
    return np.sort(order[starts])
