"""Interactions of any size, for experiments at scale: skewed popularity, but no tastes (`data.tastes` has those).

    popularity     p_i ~ 1 / (r_i + OFFSET)                 r_i: the item's rank
    activity       n_u ~ 1 + SPREAD (2 U_u - 1)             U_u uniform; the n_u add up to the interactions asked for
    choice         n_u distinct items, drawn from p; every item also has a row of its own, so that none is missing
    time           users start within a year, and a user's rows are on average an hour apart

Users are generated in blocks, and every number is a pure function of (seed, user, row of the user): the size of the
blocks changes nothing, and memory does not grow with the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from federec import streams
from federec.data.mapped import write_folder
from federec.errors import UserError

OFFSET = 20.0  # how flat the head of popularity is
SPREAD = 0.5  # users have from half to one and a half times the mean
EPOCH, YEAR, HOUR = 1_600_000_000, 365 * 86_400, 3_600

_BLOCK = 1 << 20  # rows generated at a time

# Purposes of a user's draws; those for an item count the attempts in higher bits.
_ACTIVITY, _START, _WAIT, _ITEM = (purpose << 40 for purpose in range(4))
_GENERATED = -4  # no round has this number

Ints = NDArray[np.int64]


def generate(path: Path, users: int, items: int, interactions: int, seed: int = 0) -> None:
    """Write a folder of interactions (`data.mapped`)."""
    most = (1 + SPREAD) * interactions / max(users, 1)
    if users < 1 or items < 1 or not max(3 * users, items) <= interactions or most > items / 2:
        raise UserError(
            f"{interactions} interactions do not suit {users} users and {items} items: give at least 3 per user and "
            "1 per item, and at most a third of all pairs"
        )
    blocks = _blocks(users, items, interactions, seed)
    write_folder(path, path.name, users, items, interactions, blocks)


def _blocks(users: int, items: int, interactions: int, seed: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Rows user by user, oldest first; items are coded in order of first appearance."""
    ptr = _activity(users, interactions, seed)
    codes, known = np.full(items, -1, np.int32), 0
    bounds = np.searchsorted(ptr, np.arange(0, interactions, _BLOCK))
    for first, last in zip(bounds, [*bounds[1:], users], strict=True):
        user = np.repeat(np.arange(first, last), np.diff(ptr[first : last + 1]))
        row = np.arange(ptr[first], ptr[last])
        key = streams.keys(seed, _GENERATED, user)
        position = row - ptr[user]
        rank = _items(key, user - first, position, _finds(row, items, interactions), items)
        new, begins = np.unique(rank, return_index=True)
        new = new[np.argsort(begins)]
        new = new[codes[new] < 0]
        codes[new] = np.arange(known, known + len(new))
        known += len(new)
        yield {"users": user, "items": codes[rank], "times": _times(key, position)}


def _activity(users: int, interactions: int, seed: int) -> Ints:
    """Where each user's rows begin, and where the last one's end."""
    key = streams.keys(seed, _GENERATED, np.arange(users, dtype=np.int64))
    shares = np.cumsum(1 + SPREAD * (2 * streams.unit(streams.bits(key, _ACTIVITY)) - 1))
    return np.concatenate([[0], np.floor(shares * (interactions / shares[-1]) + 0.5)]).astype(np.int64)


def _finds(row: Ints, items: int, interactions: int) -> Ints:
    """The item that is assigned to a row, or -1: item i has row ceil(i * interactions / items)."""
    item = row * items // interactions
    return np.where(-(-item * interactions // items) == row, item, -1)


def _items(key: Ints, user: Ints, position: Ints, found: Ints, items: int) -> Ints:
    """Distinct items of every user: a row whose item the user already has draws again."""
    item = np.where(found >= 0, found, _popular(key, position, items))
    attempt = 1
    while True:
        order = np.argsort(2 * (user * items + item) + (found < 0), kind="stable")  # an assigned item stays
        pair = (user * items + item)[order]
        again = order[1:][pair[1:] == pair[:-1]]
        if not len(again):
            return item
        item[again] = _popular(key[again], (attempt << 32) + position[again], items)
        attempt += 1


def _popular(key: Ints, draw: Ints, items: int) -> Ints:
    """Ranks by popularity: the inverse of its distribution function, log(1 + r / OFFSET) / log(1 + items / OFFSET)."""
    scale = np.log1p(items / OFFSET)
    rank: Ints = (OFFSET * np.expm1(scale * streams.unit(streams.bits(key, _ITEM + draw)))).astype(np.int64)
    return np.minimum(rank, items - 1)


def _times(key: Ints, position: Ints) -> Ints:
    """Times in whole seconds, rising within a user."""
    wait = 1 + streams.below(streams.bits(key, _WAIT + position), 2 * HOUR)
    first = position == 0
    wait[first] = EPOCH + streams.below(streams.bits(key[first], _START), YEAR)
    passed = np.cumsum(wait)
    start = (passed - wait)[first]
    elapsed: Ints = passed - np.repeat(start, np.diff(np.append(np.flatnonzero(first), len(position))))
    return elapsed
