"""The GPU's round of FedRAP, sigma(u_i . (c_j + d_ij) + b_i): shared rows c, and rows d that a device keeps for itself.
One program trains one device after the other, as in `gpu_linear`."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton.language as tl

from federec.kernels.gpu import Batch, cells, error_of, jit, many, of_batch, report, send, unmark, values
from federec.kernels.gpu_pages import lies, row

_FAINT = tl.constexpr(1e-3)  # a scale below which rows are multiplied by it, before it loses digits


class Steps(NamedTuple):
    """How a device learns in the round; the same for all. `methods.forms.AdditiveScore` tells more."""

    batch: Any
    epochs: Any
    rate: Any
    item_rate: Any
    own_rate: Any
    pace: Any
    """What the rates are multiplied by in the first batch."""
    step_decay: Any
    weight_decay: Any
    tolerance: Any
    away: Any
    small: Any


class Tables(NamedTuple):
    """What is read and written of a state."""

    common: Any
    """[n_items, d] shared rows c."""
    start: Any
    """[n_items, d] rows d that all devices began the run with."""
    weights: Any
    biases: Any
    """u [N, d] and b [N] of all devices."""


class Buffers(NamedTuple):
    """The workspaces of all programs, one after the other."""

    tables: Any
    lies: Any
    marks: Any
    copies: Any
    leads: Any
    queue: Any
    """[1] the number of devices that are taken."""


class Workspace(NamedTuple):
    """Where a program keeps the device at hand."""

    table: Any
    """[n_items, d] its rows c."""
    lie: Any
    """[n_items] where its rows d lie in the store, -1 where it has none."""
    mark: Any
    """[n_items] the number of the device, plus 1, that has drawn the item."""
    copies: Any
    """[n_items] how often the batch holds the item."""
    lead: Any
    """[batch] 1 for the sample that stands for all with its item."""
    tile: Any
    k: Any
    """0, 1, ... for the samples that are looked at together, and for the values of a row."""


@jit
def _find(into, tile, store, pages, had, n_items, PAGE: tl.constexpr):
    """Where the device's `had` rows lie; -1 for items without one."""
    for at in range(0, n_items, tile.shape[0]):
        tl.store(into + at + tile, tl.full(tile.shape, -1, tl.int32), mask=at + tile < n_items)
    tl.debug_barrier()
    for at in range(0, had, tile.shape[0]):
        real = at + tile < had
        lie = lies(pages, at + tile, real, PAGE)
        tl.store(into + tl.load(store.ids + lie, mask=real, other=0), lie, mask=real)
    tl.debug_barrier()


@jit
def _fetch(workspace, drawn, common, start, store, pages, had, device, PAGE: tl.constexpr, DIM: tl.constexpr):
    """The common rows of the items drawn; own rows that are new begin. Returns how many the device has of each."""
    held = 0
    for at in range(0, drawn.size, workspace.tile.shape[0]):
        real, sample = of_batch(drawn, at + workspace.tile)
        item = sample >> 1
        fetched = real & (tl.atomic_xchg(workspace.mark + item, device + 1, mask=real, sem="relaxed") != device + 1)
        place = cells(item, workspace.k, DIM)
        there = values(fetched, workspace.k, DIM)
        tl.store(workspace.table + place, tl.load(common + place, mask=there, other=0.0), mask=there)
        new = fetched & (tl.load(workspace.lie + item, mask=fetched, other=0) < 0)
        tl.debug_barrier()  # several threads may hold the same number: all have read before one writes
        lie = lies(pages, had + tl.cumsum(new.to(tl.int32), 0) - 1, new, PAGE)
        tl.store(workspace.lie + item, lie, mask=new)
        tl.store(store.ids + lie, item, mask=new)
        there = values(new, workspace.k, DIM)
        tl.store(row(store.rows, lie, workspace.k, DIM), tl.load(start + place, mask=there, other=0.0), mask=there)
        had += tl.sum(new.to(tl.int32), 0)
        held += tl.sum(fetched.to(tl.int32), 0)
    return held, had


@jit
def _count(workspace, batch):
    """How often the batch holds each of its items, and which sample leads."""
    for at in range(0, batch.size, workspace.tile.shape[0]):
        real, sample = of_batch(batch, at + workspace.tile)
        before = tl.atomic_add(workspace.copies + (sample >> 1), 1, mask=real, sem="relaxed")
        tl.store(workspace.lead + at + workspace.tile, (before == 0).to(tl.int32), mask=real)
    tl.debug_barrier()


@jit
def _step(workspace, batch, rows, w, b, scale, own_scale, new_scale, own_new_scale, speed, plan,
          L1: tl.constexpr, DIM: tl.constexpr):  # fmt: skip
    """One step of the rows on a batch. A common row is `scale` times the one in the table, an own row `own_scale` times
    the one in the store; after the step it is the new scales. Returns the loss, and its gradient for w and b."""
    shrink = 1 - speed * plan.item_rate * plan.weight_decay
    own_shrink = 1 - speed * plan.own_rate * plan.weight_decay
    loss = 0.0
    gradient = tl.zeros_like(w)
    slope = 0.0
    for at in range(0, batch.size, workspace.tile.shape[0]):
        real, sample = of_batch(batch, at + workspace.tile)
        item = sample >> 1
        lead = real & (tl.load(workspace.lead + at + workspace.tile, mask=real, other=0) > 0)
        weight = tl.load(workspace.copies + item, mask=lead, other=0).to(tl.float32) / batch.size
        there = values(lead, workspace.k, DIM)
        place = workspace.table + cells(item, workspace.k, DIM)
        own_place = row(rows, tl.load(workspace.lie + item, mask=lead, other=0), workspace.k, DIM)
        c = scale * tl.load(place, mask=there, other=0.0)
        d = own_scale * tl.load(own_place, mask=there, other=0.0)
        z = tl.sum((c + d) * w[None, :], 1) + b
        e, cross_entropy = error_of(z, (sample & 1).to(tl.float32), lead, 1)
        e *= weight
        apart = d - c
        if L1:
            norm = tl.sum(tl.abs(c), 1)
            slant = tl.where(c > 0, 1.0, tl.where(c < 0, -1.0, 0.0))
        else:
            norm = tl.sum(c * c, 1)
            slant = 2 * c
        terms = (plan.small * norm - plan.away * tl.sum(apart * apart, 1)) / DIM
        loss += tl.sum(weight * (cross_entropy + terms), 0)
        gradient += tl.sum((c + d) * e[:, None], 0)
        slope += tl.sum(e, 0)
        pulled = e[:, None] * w[None, :]
        each = (weight / DIM)[:, None]
        pushed = 2 * plan.away * each * apart
        c = shrink * c - speed * plan.item_rate * (pulled + pushed + plan.small * each * slant)
        d = own_shrink * d - speed * plan.own_rate * (pulled - pushed)
        tl.store(place, c / new_scale, mask=there)
        tl.store(own_place, d / own_new_scale, mask=there)
        tl.debug_barrier()
        if batch.shuffled:
            tl.store(workspace.copies + item, tl.zeros_like(item), mask=lead)
    tl.debug_barrier()
    return loss, gradient, slope


@jit
def _fold(workspace, drawn, rows, device, scale, own_scale, DIM: tl.constexpr):
    """Multiply the device's rows by their scales, each once: by the sample that finds its item marked. All are marked
    again after it."""
    for at in range(0, drawn.size, workspace.tile.shape[0]):
        real, sample = of_batch(drawn, at + workspace.tile)
        item = sample >> 1
        lead = unmark(workspace.mark, item, real, device)
        there = values(lead, workspace.k, DIM)
        place = workspace.table + cells(item, workspace.k, DIM)
        own_place = row(rows, tl.load(workspace.lie + item, mask=lead, other=0), workspace.k, DIM)
        tl.store(place, scale * tl.load(place, mask=there, other=0.0), mask=there)
        tl.store(own_place, own_scale * tl.load(own_place, mask=there, other=0.0), mask=there)
    tl.debug_barrier()
    for at in range(0, drawn.size, workspace.tile.shape[0]):
        real, sample = of_batch(drawn, at + workspace.tile)
        tl.store(workspace.mark + (sample >> 1), tl.zeros_like(sample) + device + 1, mask=real)
    tl.debug_barrier()


@jit
def _send(workspace, drawn, common, rows, total, device, scale, own_scale, several, DIM: tl.constexpr):
    """Add the changes of common rows to the total, keep own rows as they are without a scale; returns how many rows and
    values changed. The round is forgotten."""
    rows_changed = 0
    values_changed = 0
    for at in range(0, drawn.size, workspace.tile.shape[0]):
        real, sample = of_batch(drawn, at + workspace.tile)
        item = sample >> 1
        lead = unmark(workspace.mark, item, real, device)
        there = values(lead, workspace.k, DIM)
        place = cells(item, workspace.k, DIM)
        change = scale * tl.load(workspace.table + place, mask=there, other=0.0)
        change -= tl.load(common + place, mask=there, other=0.0)
        changed, of_them = send(total, place, change, there)
        rows_changed += changed
        values_changed += of_them
        if several:
            own_place = row(rows, tl.load(workspace.lie + item, mask=lead, other=0), workspace.k, DIM)
            tl.store(own_place, own_scale * tl.load(own_place, mask=there, other=0.0), mask=there)
        tl.store(workspace.copies + item, tl.zeros_like(item), mask=lead)
    return rows_changed, values_changed


@many
def additive_round(
    tables, store, drawn, outcome, buffers, plan, devices, n_items, most_pages, shuffled,
    L1: tl.constexpr, PAGE: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One round of FedRAP: private weights and rows step in place, changes of common rows are added up.

    Rows that a batch holds several times are looked at once, by the sample that leads, with the weight of all copies;
    so no row is written twice. Weight decay acts on all rows of the device in every batch: where a batch does not hold
    them all, by one factor for all rows."""
    program = tl.program_id(0).to(tl.int64)
    workspace = Workspace(
        buffers.tables + program * n_items * DIM,
        buffers.lies + program * n_items,
        buffers.marks + program * n_items,
        buffers.copies + program * n_items,
        buffers.leads + program * plan.batch,
        tl.arange(0, TILE),
        tl.arange(0, WIDTH),
    )
    common = tables.common
    k = workspace.k
    device = tl.atomic_add(buffers.queue, 1, sem="relaxed")
    while device < devices:
        user = tl.load(drawn.users + device)
        first = tl.load(drawn.first + device)
        count = tl.load(drawn.counts + device)
        several = count > plan.batch
        w = tl.load(tables.weights + user * DIM + k, mask=k < DIM, other=0.0)
        b = tl.load(tables.biases + user)
        mine = Batch(drawn.samples, drawn.order, first, count, False)
        pages = store.pages + user * most_pages
        had = tl.load(store.held + user).to(tl.int32)
        _find(workspace.lie, workspace.tile, store, pages, had, n_items, PAGE)
        rows_held, had = _fetch(workspace, mine, common, tables.start, store, pages, had, device, PAGE, DIM)
        tl.store(store.held + user, had)
        tl.debug_barrier()

        order = drawn.order
        speed = plan.pace
        scale = 1.0
        own_scale = 1.0
        epoch = 0
        steps = 0
        summed = 0.0
        weighed = 0.0
        last = 0.0
        while epoch < plan.epochs:
            for begin in range(0, count, plan.batch):
                size = tl.minimum(count - begin, plan.batch)
                batch = Batch(drawn.samples, order, first + begin, size, several)
                if several | (epoch == 0):
                    _count(workspace, batch)
                new_scale = scale * (1 - speed * plan.item_rate * plan.weight_decay)
                own_new_scale = own_scale * (1 - speed * plan.own_rate * plan.weight_decay)
                if several == 0:  # the batch holds all rows
                    new_scale = 1.0
                    own_new_scale = 1.0
                loss, gradient, slope = _step(
                    workspace, batch, store.rows, w, b, scale, own_scale, new_scale, own_new_scale, speed, plan, L1, DIM
                )
                remain = 1 - speed * plan.rate * plan.weight_decay
                w = remain * w - speed * plan.rate * gradient
                b = remain * b - speed * plan.rate * slope
                scale = new_scale
                own_scale = own_new_scale
                if (scale < _FAINT) | (own_scale < _FAINT):
                    _fold(workspace, mine, store.rows, device, scale, own_scale, DIM)
                    scale = 1.0
                    own_scale = 1.0
                speed *= plan.step_decay
                summed += loss
                weighed += loss * size
                steps += 1
            epoch += 1
            order += shuffled
            mean = weighed / (epoch * count).to(tl.float32)
            if (epoch > 1) & (tl.abs(mean - last) < plan.tolerance * tl.abs(last)):  # the loss has settled
                epoch = plan.epochs
            last = mean

        tl.store(tables.weights + user * DIM + k, w, mask=k < DIM)
        tl.store(tables.biases + user, b)
        rows, changed = _send(
            workspace, mine, common, store.rows, outcome.total, device, scale, own_scale, several, DIM
        )
        report(outcome.figures, device, devices, summed, steps, rows_held, rows, changed)
        tl.debug_barrier()  # the tables are the next device's
        device = tl.atomic_add(buffers.queue, 1, sem="relaxed")


@many
def additive_scores(
    tables, store, users, ask, scores, buffer, devices, n_items, most_pages, asked,
    PAGE: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Scores of the items `ask` [users, K] with the server's rows and each device's own: a program takes one user after
    the other. `buffer` [programs, n_items] says where the rows of the one at hand lie."""
    device = tl.program_id(0).to(tl.int64)
    lie_of = buffer + device * n_items
    tile = tl.arange(0, TILE)
    k = tl.arange(0, WIDTH)
    while device < devices:
        user = tl.load(users + device)
        had = tl.load(store.held + user).to(tl.int32)
        _find(lie_of, tile, store, store.pages + user * most_pages, had, n_items, PAGE)
        w = tl.load(tables.weights + user * DIM + k, mask=k < DIM, other=0.0)
        b = tl.load(tables.biases + user)
        here = device * asked
        for at in range(0, asked, TILE):
            real = at + tile < asked
            item = tl.load(ask + here + at + tile, mask=real, other=0)
            lie = tl.load(lie_of + item, mask=real, other=-1)
            place = cells(item, k, DIM)
            rows = tl.load(tables.common + place, mask=values(real, k, DIM), other=0.0)
            rows += tl.load(row(store.rows, lie, k, DIM), mask=values(lie >= 0, k, DIM), other=0.0)
            rows += tl.load(tables.start + place, mask=values(real & (lie < 0), k, DIM), other=0.0)
            tl.store(scores + here + at + tile, tl.sum(rows * w[None, :], 1) + b, mask=real)
        tl.debug_barrier()  # the buffer is the next user's
        device += tl.num_programs(0)
