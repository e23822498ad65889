"""The GPU's round of methods with a linear score, sigma(w_i . v_ij + b_i): PFedRec, FedMF and FedRecon, with or without
dual personalisation, sharpness-aware steps and noise on what is sent; and PFedRec without a server.

One program trains one device after the other, longest first, taken from a queue. It keeps w and b in registers and the
device's rows in a table of its own, which stays in cache. A row that a batch holds twice gets both changes by atomic
additions, and so does the sum over devices: values agree with the other engines up to the order of additions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton.language as tl

from federec.kernels.gpu import Batch, cells, error_of, jit, laplace, many, of_batch, report, send, unmark, values
from federec.kernels.gpu_linear_once import Once, learn_once
from federec.kernels.gpu_pages import keep, recall


class Plan(NamedTuple):
    """How a device learns in the round and what it sends; the same for all. `methods.forms.LinearScore` tells more."""

    batch: Any
    epochs: Any
    bias: Any
    """1 where there is a b, 0 where it stays 0."""
    rate: Any
    item_rate: Any
    passes: Any
    """Over the first half of the samples, to rebuild w."""
    disjoint: Any
    """1: after that, rows step only on the second half; 0: on all samples."""
    rho: Any
    item_rho: Any
    laplace: Any


class Tables(NamedTuple):
    """What is read and written of a state."""

    rows: Any
    """[n_items, d] the server's item rows; where they are private, those that all devices began the run with."""
    weights: Any
    biases: Any
    """w [N, d] and b [N] of all devices."""


class Asked(NamedTuple):
    """Items to score with each device's own rows."""

    items: Any
    """[devices, K]"""
    judges: Any
    """[devices, d + 1] weights to score them with, where it is not by the device's own."""
    scores: Any
    """[devices, K]"""


class Buffers(NamedTuple):
    """The workspaces of all programs, one after the other."""

    tables: Any
    marks: Any
    lasts: Any
    errors: Any
    pulls: Any
    queue: Any
    """[1] the number of devices that are taken."""


class Workspace(NamedTuple):
    """Where a program keeps the device at hand."""

    table: Any
    """[n_items, d] its rows."""
    mark: Any
    """[n_items] the number of the device, plus 1, that has drawn the item."""
    error: Any
    """[batch]."""
    pulls: Any
    """[n_items] errors of a batch summed row by row, zero between uses."""
    tile: Any
    k: Any
    """0, 1, ... for the samples that are looked at together, and for the values of a row."""


@jit
def _look(workspace, batch, w, b, plan, DIM: tl.constexpr, PULL: tl.constexpr = False, KEEP: tl.constexpr = False,
          LIFTED: tl.constexpr = False, lift=0.0):  # fmt: skip
    """The mean loss of a batch and, with PULL, its gradient with respect to w and b; with KEEP errors are kept for the
    rows. Logits may be LIFTED by `lift` times the sum of their row's errors."""
    loss = 0.0
    gradient = tl.zeros_like(w)
    slope = 0.0
    for at in range(0, batch.size, workspace.tile.shape[0]):
        real, sample = of_batch(batch, at + workspace.tile)
        rows = tl.load(
            workspace.table + cells(sample >> 1, workspace.k, DIM), mask=values(real, workspace.k, DIM), other=0.0
        )
        z = tl.sum(rows * w[None, :], 1) + b
        if LIFTED:
            z += lift * tl.load(workspace.pulls + (sample >> 1), mask=real, other=0.0)
        e, parts = error_of(z, (sample & 1).to(tl.float32), real, batch.size)
        loss += tl.sum(parts, 0)
        if PULL:
            gradient += tl.sum(rows * e[:, None], 0)
            slope += plan.bias * tl.sum(e, 0)
        if KEEP:
            tl.store(workspace.error + at + workspace.tile, e, mask=real)
    return loss, gradient, slope


@jit
def _climb_rows(workspace, batch, w, b, plan, DIM: tl.constexpr):
    """The errors of a batch whose rows are moved uphill. The gradient of row r is E_r w, with E_r the sum of its
    samples' errors, so it moves by rho E_r w / (|w| |E|), and its logits by rho E_r |w| / |E|."""
    for at in range(0, batch.size, workspace.tile.shape[0]):
        real, sample = of_batch(batch, at + workspace.tile)
        e = tl.load(workspace.error + at + workspace.tile, mask=real, other=0.0)
        tl.atomic_add(workspace.pulls + (sample >> 1), e, mask=real, sem="relaxed")
    tl.debug_barrier()
    total = 0.0
    for at in range(0, batch.size, workspace.tile.shape[0]):
        real, sample = of_batch(batch, at + workspace.tile)
        e = tl.load(workspace.error + at + workspace.tile, mask=real, other=0.0)
        total += tl.sum(e * tl.load(workspace.pulls + (sample >> 1), mask=real, other=0.0), 0)  # E_r^2, in parts
    size = tl.sum(w * w, 0)
    lift = plan.item_rho * size / tl.maximum(tl.sqrt(size * total), 1e-12)
    tl.debug_barrier()
    _look(workspace, batch, w, b, plan, DIM, KEEP=True, LIFTED=True, lift=lift)
    tl.debug_barrier()
    for at in range(0, batch.size, workspace.tile.shape[0]):
        real, sample = of_batch(batch, at + workspace.tile)
        tl.store(workspace.pulls + (sample >> 1), tl.zeros_like(workspace.tile).to(tl.float32), mask=real)
    tl.debug_barrier()


@jit
def _learn(workspace, batch, w, b, plan, SHARP: tl.constexpr, DIM: tl.constexpr,
           WEIGHTS: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """One batch: the weights w and b, the rows, or both step down the gradient at their current values."""
    loss, gradient, slope = _look(workspace, batch, w, b, plan, DIM, PULL=WEIGHTS, KEEP=ROWS)
    if WEIGHTS and SHARP:  # w and b moved uphill, by rho g / |g|
        up = plan.rho / tl.maximum(tl.sqrt(tl.sum(gradient * gradient, 0) + slope * slope), 1e-12)
        _, gradient, slope = _look(workspace, batch, w + up * gradient, b + up * slope, plan, DIM, PULL=True)
    if ROWS:
        tl.debug_barrier()  # nobody may change a row that another still reads
        if SHARP:
            _climb_rows(workspace, batch, w, b, plan, DIM)
        for at in range(0, batch.size, workspace.tile.shape[0]):
            real, sample = of_batch(batch, at + workspace.tile)
            e = tl.load(workspace.error + at + workspace.tile, mask=real, other=0.0)
            change = -plan.item_rate * e[:, None] * w[None, :]
            place = workspace.table + cells(sample >> 1, workspace.k, DIM)
            tl.atomic_add(place, change, mask=values(real, workspace.k, DIM), sem="relaxed")
        tl.debug_barrier()
    if WEIGHTS:
        w -= plan.rate * gradient
        b -= plan.rate * slope
    return w, b, loss


@jit
def _pass(workspace, whole, start, stop, w, b, loss, steps, plan, SHARP: tl.constexpr, DIM: tl.constexpr,
          WEIGHTS: tl.constexpr = True, ROWS: tl.constexpr = True, ALTERNATE: tl.constexpr = False):  # fmt: skip
    """The batches of a device's samples from `start` to `stop` in turn; `loss` sums their losses, `steps` counts."""
    for at in range(start, stop, plan.batch):
        size = tl.minimum(stop - at, plan.batch)
        batch = Batch(whole.samples, whole.order, whole.first + at, size, whole.shuffled)
        if ALTERNATE:  # rows step after, with the new w
            w, b, part = _learn(workspace, batch, w, b, plan, SHARP, DIM, WEIGHTS=True, ROWS=False)
            w, b, other = _learn(workspace, batch, w, b, plan, SHARP, DIM, WEIGHTS=False, ROWS=True)
            loss += part + other
            steps += 2
        else:
            w, b, part = _learn(workspace, batch, w, b, plan, SHARP, DIM, WEIGHTS, ROWS)
            loss += part
            steps += 1
    return w, b, loss, steps


@jit
def _fetch(workspace, drawn, shared, device, DIM: tl.constexpr):
    """The rows of the items drawn; returns how many."""
    held = 0
    for at in range(0, drawn.size, workspace.tile.shape[0]):
        real, sample = of_batch(drawn, at + workspace.tile)
        before = tl.atomic_xchg(workspace.mark + (sample >> 1), device + 1, mask=real, sem="relaxed")
        held += tl.sum((real & (before != device + 1)).to(tl.int32), 0)
        place = cells(sample >> 1, workspace.k, DIM)
        there = values(real, workspace.k, DIM)
        tl.store(workspace.table + place, tl.load(shared + place, mask=there, other=0.0), mask=there)
    return held


@jit
def _score(workspace, shared, w, b, ask, scores, asked, least, DIM: tl.constexpr):
    """Scores with the device's rows, whose marks are not below `least`; the server's, where it has none."""
    for at in range(0, asked, workspace.tile.shape[0]):
        real = at + workspace.tile < asked
        item = tl.load(ask + at + workspace.tile, mask=real, other=0)
        own = real & (tl.load(workspace.mark + item, mask=real, other=0) >= least)
        place = cells(item, workspace.k, DIM)
        rows = tl.load(workspace.table + place, mask=values(own, workspace.k, DIM), other=0.0)
        rows += tl.load(shared + place, mask=values(real & (own == 0), workspace.k, DIM), other=0.0)
        tl.store(scores + at + workspace.tile, tl.sum(rows * w[None, :], 1) + b, mask=real)


@jit
def _send(workspace, drawn, shared, total, quantiles, key, device, plan, NOISY: tl.constexpr, DIM: tl.constexpr):
    """Add the changes of the device's rows to the total; returns how many rows and values changed. No item is marked
    any more."""
    rows_changed = 0
    values_changed = 0
    for at in range(0, drawn.size, workspace.tile.shape[0]):
        real, sample = of_batch(drawn, at + workspace.tile)
        there = values(unmark(workspace.mark, sample >> 1, real, device), workspace.k, DIM)
        place = cells(sample >> 1, workspace.k, DIM)
        change = tl.load(workspace.table + place, mask=there, other=0.0) - tl.load(
            shared + place, mask=there, other=0.0
        )
        if NOISY:
            noise = plan.laplace * laplace(quantiles, key, sample >> 1, workspace.k, DIM)
            change = tl.where(there, change + noise, 0.0)
        rows, of_them = send(total, place, change, there)
        rows_changed += rows
        values_changed += of_them
    return rows_changed, values_changed


@many
def linear_round(
    tables, store, drawn, asks, outcome, quantiles, buffers, plan, devices, n_items, most_pages, shuffled, asked,
    ALTERNATE: tl.constexpr, REBUILT: tl.constexpr, SHARP: tl.constexpr, NOISY: tl.constexpr,
    OWN: tl.constexpr, JUDGED: tl.constexpr, ONCE: tl.constexpr,
    PAGE: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One round of the devices: private weights step in place, changes of rows are added up, and items are scored with
    each device's own rows, by its own weights or those of a judge. OWN rows step in the store; then nothing is scored
    or sent. REBUILT: w is, in every round, as in FedRecon. ONCE: a batch is not larger than a tile, w is not rebuilt,
    nothing is moved uphill and no rows are OWN."""
    program = tl.program_id(0).to(tl.int64)
    workspace = Workspace(
        buffers.tables + program * n_items * DIM,
        buffers.marks + program * n_items,
        buffers.errors + program * plan.batch,
        buffers.pulls + program * n_items,
        tl.arange(0, TILE),
        tl.arange(0, WIDTH),
    )
    once = Once(workspace.table, workspace.mark, buffers.lasts + program * n_items, workspace.tile, workspace.k)
    clock = tl.full((), TILE, tl.int32)
    shared = tables.rows
    k = workspace.k
    device = tl.atomic_add(buffers.queue, 1, sem="relaxed")
    while device < devices:
        following = tl.atomic_add(buffers.queue, 1, sem="relaxed")
        user = tl.load(drawn.users + device)
        first = tl.load(drawn.first + device)
        count = tl.load(drawn.counts + device)
        key = tl.load(drawn.keys + device)
        w = tl.load(tables.weights + user * DIM + k, mask=k < DIM, other=0.0)
        b = tl.load(tables.biases + user)
        mine = Batch(drawn.samples, drawn.order, first, count, False)
        loss = 0.0
        steps = 0
        least = device + 1
        if ONCE:
            least = clock
            whole = Batch(drawn.samples, drawn.order, first, count, count > plan.batch)
            w, b, loss, steps, held, rows, changed, clock = learn_once(
                once, whole, w, b, clock, plan, shared, outcome.total, quantiles, key, shuffled, ALTERNATE, NOISY, DIM
            )
        else:
            held = _fetch(workspace, mine, shared, device, DIM)
            tl.debug_barrier()
        if OWN:
            recall(store, store.pages + user * most_pages, user, workspace, device, PAGE, DIM)
            tl.debug_barrier()
        if REBUILT:  # w from nothing, rows frozen; then the rows, w frozen
            whole = Batch(drawn.samples, drawn.order, first, count, True)
            half = (count + 1) // 2
            w = tl.zeros_like(w)
            for _ in range(plan.passes):
                w, b, loss, steps = _pass(workspace, whole, 0, half, w, b, loss, steps, plan, SHARP, DIM, ROWS=False)
            begin = half * plan.disjoint
            for _ in range(plan.epochs):
                w, b, loss, steps = _pass(
                    workspace, whole, begin, count, w, b, loss, steps, plan, SHARP, DIM, WEIGHTS=False
                )
        elif not ONCE:
            order = drawn.order
            for _ in range(plan.epochs):
                whole = Batch(drawn.samples, order, first, count, count > plan.batch)
                w, b, loss, steps = _pass(
                    workspace, whole, 0, count, w, b, loss, steps, plan, SHARP, DIM, ALTERNATE=ALTERNATE
                )
                order += shuffled
        tl.store(tables.weights + user * DIM + k, w, mask=k < DIM)
        tl.store(tables.biases + user, b)

        if OWN:
            keep(store, store.pages + user * most_pages, user, workspace, device, mine, PAGE, DIM)
            report(outcome.figures, device, devices, loss, steps, 0, 0, 0)
        else:
            place = tl.load(drawn.places + device)
            if JUDGED:
                w = tl.load(asks.judges + place * (DIM + 1) + k, mask=k < DIM, other=0.0)
                b = tl.load(asks.judges + place * (DIM + 1) + DIM)
            here = place * asked
            _score(workspace, shared, w, b, asks.items + here, asks.scores + here, asked, least, DIM)
            tl.debug_barrier()
            if not ONCE:
                rows, changed = _send(workspace, mine, shared, outcome.total, quantiles, key, device, plan, NOISY, DIM)
            report(outcome.figures, device, devices, loss, steps, held, rows, changed)
        tl.debug_barrier()  # the table is the next device's
        device = following


@many
def linear_scores(
    tables, users, ask, scores, asked, DIM: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Scores of the items `ask` [users, K] with the server's rows: program (u, t) takes the t-th tile of user u."""
    device = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    real = at < asked
    k = tl.arange(0, WIDTH)
    user = tl.load(users + device)
    w = tl.load(tables.weights + user * DIM + k, mask=k < DIM, other=0.0)
    item = tl.load(ask + device * asked + at, mask=real, other=0)
    rows = tl.load(tables.rows + cells(item, k, DIM), mask=values(real, k, DIM), other=0.0)
    tl.store(scores + device * asked + at, tl.sum(rows * w[None, :], 1) + tl.load(tables.biases + user), mask=real)
