"""The GPU's round of methods with a linear score where a batch's rows fit into the registers of a program: they are
read once, looked at once or twice and written once.

Two samples of a batch with the same item share a row. One of them leads: it writes the row, and the others add their
changes to it. The last batch that holds an item sends the change of its row, while that is in the nearest cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton.language as tl

from federec.kernels.gpu import cells, error_of, jit, laplace, send, values


class Once(NamedTuple):
    """Where a program keeps the device at hand. Its batches have times, a tile apart, which never go back: so nothing
    has to be cleared for the next device."""

    table: Any
    """[n_items, d] rows that the device has changed."""
    mark: Any
    """[n_items] the sample that led for the item: its batch's time, plus its place in the batch."""
    last: Any
    """[n_items] the time of the last batch that holds the item."""
    tile: Any
    k: Any
    """0, 1, ... for the samples of a batch, and for the values of a row."""


@jit
def _places(whole, number, batches, plan, shuffled, tile):
    """Which places of a batch hold a sample, and where these are. Batches are numbered through all passes; one after
    the last holds none."""
    done = number // tl.maximum(batches, 1)
    begin = (number - done * batches) * plan.batch
    size = tl.where(done < plan.epochs, tl.minimum(whole.size - begin, plan.batch), 0)
    real = tile < size
    at = whole.first + begin + tile
    # Without a branch, at whose end the program would wait for what is loaded.
    return real, tl.load(whole.order + done.to(tl.int64) * shuffled + at, mask=real & whole.shuffled, other=at)


@jit
def _foresee(once, whole, since, batches, plan, shuffled):
    """The last batches of all items of a device whose first batch is at the time `since`."""
    number = batches * (plan.epochs - 1)
    for late in range(number, number + batches):
        real, at = _places(whole, late, batches, plan, shuffled, once.tile)
        item = tl.load(whole.samples + at, mask=real, other=0) >> 1
        tl.atomic_max(once.last + item, since + late * once.tile.shape[0], mask=real, sem="relaxed")
    tl.debug_barrier()


@jit
def _look(rows, w, b, sample, real, size):
    """Errors and losses of the samples of a batch."""
    return error_of(tl.sum(rows * w[None, :], 1) + b, (sample & 1).to(tl.float32), real, size)


@jit
def learn_once(once, whole, w, b, since, plan, shared, total, quantiles, key, shuffled,
               ALTERNATE: tl.constexpr, NOISY: tl.constexpr, DIM: tl.constexpr):  # fmt: skip
    """A device learns, from the time `since` on, and adds the changes of its rows to the total. Returns w and b; the
    sum of its losses and how many; how many rows it holds, rows and values it changed; and the time when it is done."""
    tile = once.tile
    batches = (whole.size + plan.batch - 1) // plan.batch
    _foresee(once, whole, since, batches, plan, shuffled)
    losses = tl.zeros(tile.shape, tl.float32)
    held = tl.zeros_like(tile)
    rows_changed = 0
    values_changed = 0
    time = since
    real, at = _places(whole, 0, batches, plan, shuffled, tile)
    sample = tl.load(whole.samples + at, mask=real, other=0)
    for number in range(batches * plan.epochs):
        # The samples of the next batch are loaded on the way: first where they are, later what is there.
        next_real, at = _places(whole, number + 1, batches, plan, shuffled, tile)
        item = sample >> 1
        before = tl.load(once.mark + item, mask=real, other=0)
        last = tl.load(once.last + item, mask=real, other=0)
        place = cells(item, once.k, DIM)
        known = (before >= since)[:, None]
        rows = tl.load(tl.where(known, once.table + place, shared + place), mask=values(real, once.k, DIM), other=0.0)
        tl.debug_barrier()  # all have read the marks
        tl.store(once.mark + item, time + tile, mask=real)
        tl.debug_barrier()
        lead = real & (tl.load(once.mark + item, mask=real, other=0) == time + tile)
        held += (lead & (before < since)).to(tl.int32)

        size = tl.minimum(whole.size - (number % batches) * plan.batch, plan.batch)
        e, parts = _look(rows, w, b, sample, real, size)
        losses += parts
        new_w = w - plan.rate * tl.sum(rows * e[:, None], 0)
        new_b = b - plan.rate * plan.bias * tl.sum(e, 0)
        following = tl.load(whole.samples + at, mask=next_real, other=0)
        if ALTERNATE:  # rows step after, with the new w
            e, parts = _look(rows, new_w, new_b, sample, real, size)
            losses += parts
            w = new_w
        step = -plan.item_rate * e[:, None] * w[None, :]
        tl.store(once.table + place, rows + step, mask=values(lead, once.k, DIM))
        tl.debug_barrier()  # rows are written before others add to them
        tl.atomic_add(once.table + place, step, mask=values(real & (lead == 0), once.k, DIM), sem="relaxed")
        tl.debug_barrier()

        there = values(lead & (last == time), once.k, DIM)
        change = tl.load(once.table + place, mask=there, other=0.0) - tl.load(shared + place, mask=there, other=0.0)
        if NOISY:
            change = tl.where(there, change + plan.laplace * laplace(quantiles, key, item, once.k, DIM), 0.0)
        sent, of_them = send(total, place, change, there)
        rows_changed += sent
        values_changed += of_them
        w = new_w
        b = new_b
        real = next_real
        sample = following
        time += tile.shape[0]
    steps = batches * plan.epochs * (2 if ALTERNATE else 1)
    return w, b, tl.sum(losses, 0), steps, tl.sum(held, 0), rows_changed, values_changed, time
