"""Private item rows that lie on pages, as `cohort.store.RowStore` keeps them, read and written by the GPU's kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton.language as tl

from federec.kernels.gpu import cells, jit, of_batch, unmark, values


class Store(NamedTuple):
    """A store, with space for all rows that a device will touch."""

    held: Any
    pages: Any
    ids: Any
    rows: Any


@jit
def lies(pages, number, real, PAGE: tl.constexpr):
    """Where the rows of these numbers lie in a store, by the pages of their device."""
    return tl.load(pages + number // PAGE, mask=real, other=0) * PAGE + number % PAGE


@jit
def row(rows, lie, k, DIM: tl.constexpr):
    """Where the values of a store's rows lie."""
    return rows + lie.to(tl.int64)[:, None] * DIM + k[None, :]


@jit
def recall(store, pages, user, workspace, device, PAGE: tl.constexpr, DIM: tl.constexpr):
    """The device's rows into its table, where it has drawn the item."""
    had = tl.load(store.held + user).to(tl.int32)
    for at in range(0, had, workspace.tile.shape[0]):
        real = at + workspace.tile < had
        lie = lies(pages, at + workspace.tile, real, PAGE)
        item = tl.load(store.ids + lie, mask=real, other=0)
        drawn = real & (tl.load(workspace.mark + item, mask=real, other=0) == device + 1)
        there = values(drawn, workspace.k, DIM)
        rows = tl.load(row(store.rows, lie, workspace.k, DIM), mask=there, other=0.0)
        tl.store(workspace.table + cells(item, workspace.k, DIM), rows, mask=there)


@jit
def keep(store, pages, user, workspace, device, drawn, PAGE: tl.constexpr, DIM: tl.constexpr):
    """The table's rows back to the store: over those it had, then new ones after them. No item is marked any more."""
    had = tl.load(store.held + user).to(tl.int32)
    for at in range(0, had, workspace.tile.shape[0]):
        real = at + workspace.tile < had
        lie = lies(pages, at + workspace.tile, real, PAGE)
        item = tl.load(store.ids + lie, mask=real, other=0)
        _write(store, lie, workspace, item, unmark(workspace.mark, item, real, device), DIM)
    tl.debug_barrier()
    for at in range(0, drawn.size, workspace.tile.shape[0]):
        real, sample = of_batch(drawn, at + workspace.tile)
        new = unmark(workspace.mark, sample >> 1, real, device)
        lie = lies(pages, had + tl.cumsum(new.to(tl.int32), 0) - 1, new, PAGE)
        tl.store(store.ids + lie, sample >> 1, mask=new)
        _write(store, lie, workspace, sample >> 1, new, DIM)
        had += tl.sum(new.to(tl.int32), 0)
    tl.store(store.held + user, had)


@jit
def _write(store, lie, workspace, item, which, DIM: tl.constexpr):
    """Rows of the table into the store."""
    there = values(which, workspace.k, DIM)
    rows = tl.load(workspace.table + cells(item, workspace.k, DIM), mask=there, other=0.0)
    tl.store(row(store.rows, lie, workspace.k, DIM), rows, mask=there)
