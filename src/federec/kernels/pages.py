"""Private item rows that lie on pages, as `cohort.store.RowStore` keeps them, read and written by a kernel."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from federec.kernels.compiling import jit
from federec.kernels.cpu import AHEAD, copy, fetch_row
from federec.kernels.lanes import LINE
from federec.kernels.machine import fetch

_SOON = 4  # pages whose items are on their way from memory while those of one are at work


class Pages(NamedTuple):
    """A store as arrays, with space for all rows that a device will touch."""

    held: Any
    pages: Any
    ids: Any
    rows: Any


class Kept(NamedTuple):
    """Which rows of the device at hand are in the store already."""

    rows: Any
    """[rows + 1]"""
    places: Any
    """[rows + 1] where each of them is among all rows of all pages."""


def make_kept(rows: int) -> Kept:
    """For any device with at most so many rows."""
    return Kept(np.zeros(rows + 1, np.int32), np.zeros(rows + 1, np.int64))


@jit
def recall(store: Any, user: int, slot_of: Any, kept: Any, table: Any) -> int:
    """The device's rows into the table, where an item has a slot in it; returns how many. First they are found, without
    a branch that the processor would guess wrong, and then copied while others are on their way from memory."""
    page, held, count = store.ids.shape[1], store.held[user], 0
    last = (held - 1) // page
    for number in range(last + 1):
        here, ahead = store.pages[user, number], store.pages[user, min(number + _SOON, last)]
        for column in range(0, page, LINE):
            fetch(store.ids, ahead, column)
        for at in range(min(page, held - number * page)):
            row = slot_of[store.ids[here, at]]
            kept.rows[count], kept.places[count] = row, here * page + at
            count += row >= 0
    rows = store.rows.reshape(-1, table.shape[1])
    last = count - 1
    for i in range(count):
        fetch_row(rows, kept.places[min(i + AHEAD, last)])
        copy(rows[kept.places[i]], table[kept.rows[i]])
    return count


@jit
def keep(store: Any, user: int, slot_of: Any, ids: Any, kept: Any, count: int, table: Any) -> None:
    """The table's rows back to the store: over the `count` ones it had, then new ones after them. No item has a slot
    any more."""
    page, had = store.ids.shape[1], store.held[user]
    rows = store.rows.reshape(-1, table.shape[1])
    for i in range(count):
        row = kept.rows[i]
        slot_of[ids[row]] = -1
        copy(table[row], rows[kept.places[i]])
    for row in range(len(table)):
        if slot_of[ids[row]] >= 0:
            here, at = store.pages[user, had // page], had % page
            slot_of[ids[row]], store.ids[here, at] = -1, ids[row]
            copy(table[row], store.rows[here, at])
            had += 1
    store.held[user] = had
