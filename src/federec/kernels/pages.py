"""Private item rows that lie on pages, as `cohort.store.RowStore` keeps them, read and written by a kernel."""

from __future__ import annotations

from typing import Any, NamedTuple

from federec.kernels.compiling import jit


class Pages(NamedTuple):
    """A store as arrays, with space for all rows that a device will touch."""

    held: Any
    pages: Any
    ids: Any
    rows: Any


@jit
def recall(store: Any, user: int, slot_of: Any, table: Any) -> None:
    """The device's rows into the table, where an item has a slot in it."""
    page = store.ids.shape[1]
    for k in range(store.held[user]):
        here, at = store.pages[user, k // page], k % page
        row = slot_of[store.ids[here, at]]
        if row >= 0:
            for j in range(table.shape[1]):
                table[row, j] = store.rows[here, at, j]


@jit
def keep(store: Any, user: int, slot_of: Any, ids: Any, table: Any) -> None:
    """The table's rows back to the store: over those it had, then new ones after them. No item has a slot any more."""
    page, had = store.ids.shape[1], store.held[user]
    for k in range(had):
        here, at = store.pages[user, k // page], k % page
        item = store.ids[here, at]
        row = slot_of[item]
        if row >= 0:
            slot_of[item] = -1
            for j in range(table.shape[1]):
                store.rows[here, at, j] = table[row, j]
    for row in range(len(table)):
        if slot_of[ids[row]] >= 0:
            here, at = store.pages[user, had // page], had % page
            slot_of[ids[row]], store.ids[here, at] = -1, ids[row]
            for j in range(table.shape[1]):
                store.rows[here, at, j] = table[row, j]
            had += 1
    store.held[user] = had
