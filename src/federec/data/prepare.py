"""From the rows of a source to `Interactions`: filters, codes, repeated pairs. It works only on arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from federec.data.interactions import Ids, Interactions
from federec.errors import UserError

Mask = NDArray[np.bool_]

_ROWS = 1 << 20  # processed at a time


@dataclass(frozen=True)
class Filters:
    """Which rows of a source are left out, in this order."""

    min_rating: float | None = None
    """Rows with a lower rating, and with none."""
    min_interactions: int = 0
    """Rows of users with fewer rows."""
    k_core: int = 0
    """Rows of users and items with fewer partners, until all have k."""
    keep_repeats: bool = False
    """Whether rows that repeat a (user, item) pair stay; else one row of each pair stays."""


ALL = Filters()


@dataclass(frozen=True)
class Rows:
    """Rows in the order of the source, repeated pairs included; `user_ids[users]` are the labels."""

    users: NDArray[np.integer[Any]]
    items: NDArray[np.integer[Any]]
    user_ids: Ids
    item_ids: Ids
    times: NDArray[np.float64] | None = None
    ratings: NDArray[np.float32] | None = None
    parts: NDArray[np.int8] | None = None
    """0 training, 1 validation, 2 test, where the source says it."""

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
            parts=None if self.parts is None else self.parts[keep],
        )


def prepare(rows: Rows, name: str, sha256: str = "", filters: Filters = ALL) -> Interactions:
    """Filter, code by first appearance, merge repeated pairs: in the order that the published counts assume."""
    read = len(rows)
    if filters.min_rating is not None:
        rows = _well_rated(rows, name, filters.min_rating)
    below = read - len(rows)
    if filters.min_interactions > 0:
        rows = _long_histories(rows, name, filters.min_interactions)
    if filters.k_core > 0:
        rows = _core(rows, name, filters.k_core)
    users, user_ids = _code(rows.users, rows.user_ids)
    items, item_ids = _code(rows.items, rows.item_ids)
    coded = replace(rows, users=users, items=items)
    repeated, numbers = _repeats(coded)
    merging = repeated > 0 and not filters.keep_repeats
    kept = coded.where(_one_row_per_pair(coded, numbers)) if merging else coded
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
        parts=kept.parts,
        repeats=filters.keep_repeats,
        repeated=repeated if filters.keep_repeats else 0,
        below=below,
        known_before=_known_before(coded) if merging else 0,
    )


def _well_rated(rows: Rows, name: str, least: float) -> Rows:
    """The rows with a rating of at least `least`; a blank rating is none."""
    if rows.ratings is None or np.isnan(rows.ratings).all():
        raise UserError(
            f"'{name}' has no ratings to compare with {least:g}; leave out --min-rating, or say which column has them: "
            "--columns rating=..."
        )
    keep = rows.ratings >= np.float32(least)
    if not keep.any():
        highest = np.nanmax(rows.ratings)
        raise UserError(
            f"no row of '{name}' is rated {least:g} or higher (the highest is {highest:g}); lower --min-rating"
        )
    return rows.where(keep)


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


def _repeats(rows: Rows) -> tuple[int, NDArray[np.int64]]:
    """How many rows repeat a pair, and the numbers of these pairs, ascending."""
    pairs = _pairs(rows)
    pairs.sort()
    again = pairs[1:] == pairs[:-1]
    return int(np.count_nonzero(again)), np.unique(pairs[1:][again])


def _one_row_per_pair(rows: Rows, repeated: NDArray[np.int64]) -> Mask:
    """One row of each (user, item) pair: in its earliest part the newest; the first among equal times, or without any.
    Only rows of the `repeated` pairs are sorted: mostly few, and sorting takes memory.

    A pair that trains is not held out as well: the answer would be known.
    """
    pairs, keep = _pairs(rows), np.ones(len(rows), bool)
    for start in range(0, len(rows), _ROWS):
        block = pairs[start : start + _ROWS]
        place = np.searchsorted(repeated, block).clip(max=len(repeated) - 1)
        keep[start : start + _ROWS] = repeated[place] != block
    several = np.flatnonzero(~keep)
    keys: list[NDArray[Any]] = [pairs[several]]  # the last one counts first
    if rows.parts is not None:
        keys.insert(0, rows.parts[several])
    if rows.times is not None:
        keys.insert(0, -rows.times[several])
    order = np.lexsort(keys)
    keep[several[order[np.diff(keys[-1][order], prepend=-1) != 0]]] = True
    return keep


def _known_before(rows: Rows) -> int:
    """The number of (pair, part)s whose pair is also in an earlier part."""
    if rows.parts is None:
        return 0
    pairs = _pairs(rows)
    return len(np.unique(pairs * 3 + rows.parts)) - len(np.unique(pairs))
