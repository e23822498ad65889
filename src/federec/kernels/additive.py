"""The fused round of methods with an additive score, sigma(u_i . (c_j + d_ij) + b_i): shared rows c, and rows d that a
device keeps for itself. One device at a time per thread, its rows in cache from drawing to writing back."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from federec.kernels.columns import add_products, errors, gather, height, scatter, shaped, width
from federec.kernels.compiling import exact, jit, kernel
from federec.kernels.cpu import (
    Samples,
    copy,
    distinct,
    draw_rows,
    emphasise,
    floats,
    laplace,
    look_up,
    make_samples,
    merge,
    release,
    send,
    shuffled,
)
from federec.kernels.machine import count_on
from federec.kernels.pages import Kept, Pages, keep, make_kept, recall
from federec.kernels.plgc import begin, end, logits, meet, mixed_errors, redundancy, weigh

_FAINT = np.float32(1e-3)  # a scale below which rows are multiplied by it, before it loses digits


class Steps(NamedTuple):
    """How a device learns in the round; the same for all. `methods.forms.AdditiveScore` tells more."""

    negatives: int
    batch: int
    epochs: int
    rate: np.float32
    """Step of u and b at the start of the round."""
    common_rate: np.float32
    """The same of c; 0 where there is none."""
    own_rate: np.float32
    """The same of d; 0 where there is none."""
    away: np.float32
    """Weight of the term that pushes c and d apart."""
    small: np.float32
    """Weight of the norm of c."""
    squared: bool
    """The norm of c is that of its squares."""
    weight_decay: np.float32
    step_decay: np.float32
    tolerance: np.float32
    rho: np.float32
    """How far u, b and d are moved uphill before their gradient is taken; 0 means not at all."""
    common_rho: np.float32
    """The same of c."""
    alternate: bool
    """Rows step after u and b, with the new ones."""


class Tables(NamedTuple):
    """What is read and written of a state."""

    common: Any
    """[M, dim] shared rows c; 0 where there are none."""
    start: Any
    """[M, dim] rows d that all devices began the run with."""
    store: Pages
    """Rows d of the devices, with space for all that they will touch."""
    keeps: bool
    """There are rows d."""
    weights: Any
    biases: Any
    """u [N, dim] and b [N] of all devices."""


class Workspace(NamedTuple):
    """Where a thread keeps the device at hand."""

    samples: Samples
    kept: Kept
    positive: Any
    """[rows]"""
    c: Any
    d: Any
    """[rows, dim] the device's rows, less their scales; d is 0 where there is none."""
    scale: Any
    """[2] what c and d are multiplied by."""
    w: Any
    b: Any
    gradient: Any
    uphill: Any
    """w and what is made of it are filled up with zeros (`kernels.columns`)."""
    judge: Any
    """[dim + 1]"""
    slots: Any
    """Row of each sample, shuffled."""
    seen: Any
    rows: Any
    times: Any
    """Of a batch: see `cpu.distinct`."""
    common: Any
    own: Any
    """Columns of c and d, before they are shaped."""
    weights: Any
    sides: Any
    z: Any
    error: Any
    top_z: Any
    common_error: Any
    own_error: Any
    """See `Batch`."""


class Batch(NamedTuple):
    """The distinct rows of a batch as columns (`kernels.columns`)."""

    rows: int
    samples: int
    """How many rows, and samples that they stand for."""
    c: Any
    d: Any
    weights: Any
    sides: Any
    z: Any
    error: Any
    """Of each column: its share of the samples, and what `columns.errors` takes and gives."""
    top_z: Any
    common_error: Any
    own_error: Any
    """The same where gradients are taken uphill: logits with u, b and d moved, errors with c moved and with these."""


def additive_workspace(n_items: int, most: int, dim: int) -> Workspace:
    """For any device with at most `most` samples."""
    rows = min(most, n_items)
    return Workspace(
        samples=make_samples(n_items, most),
        kept=make_kept(rows),
        positive=np.empty(rows, np.bool_),
        c=floats(rows, dim),
        d=floats(rows, dim),
        scale=floats(2),
        w=floats(height(dim)),
        b=floats(1),
        gradient=floats(height(dim)),
        uphill=floats(height(dim)),
        judge=floats(dim + 1),
        slots=np.empty(most, np.int32),
        seen=np.full(rows, -1, np.int32),
        rows=np.empty(rows, np.int32),
        times=np.empty(rows, np.int32),
        common=floats(height(dim) * width(rows)),
        own=floats(height(dim) * width(rows)),
        weights=floats(width(rows)),
        sides=floats(width(rows)),
        z=floats(width(rows)),
        error=floats(width(rows)),
        top_z=floats(width(rows)),
        common_error=floats(width(rows)),
        own_error=floats(width(rows)),
    )


@jit
def _norm(x: Any, squared: bool) -> Any:
    """What a value x of c adds to the norm, and the slope of that."""
    if squared:
        return x * x, np.float32(2.0) * x
    return abs(x), np.float32(x > 0) - np.float32(x < 0)


@exact
def _rest(step: Any, decay: Any) -> Any:
    """What weight decay leaves of a value."""
    return np.float32(1.0) - step * decay


@exact
def _moved(value: Any, rest: Any, pull: Any, rate: Any) -> Any:
    """A value after a step with weight decay."""
    return rest * value - pull * rate


@jit
def _stack(workspace: Any, mix: Any, emphasis: Any, c: Any, d: Any, some: int, count: int) -> Any:
    """A batch of `count` samples, which holds row rows[i] times[i] times, as columns of its `some` rows. `emphasis`:
    None where all samples weigh the same."""
    rows, times, dim = workspace.rows[:some], workspace.times, c.shape[1]
    common, own = shaped(workspace.common, dim, some), shaped(workspace.own, dim, some)
    wide = common.shape[1]
    weights, sides = workspace.weights[:wide], workspace.sides[:wide]
    gather(c, rows, common)
    gather(d, rows, own)
    meet(mix, rows)
    weights.fill(0)
    inverse = np.float32(1.0 / count)
    for i in range(some):
        weights[i] = np.float32(times[i]) * inverse
        if emphasis is not None:
            weights[i] *= emphasis.of_row[rows[i]]
        sides[i] = -1 if workspace.positive[rows[i]] else 1
    z, error = workspace.z[:wide], workspace.error[:wide]
    top_z, common_error, own_error = workspace.top_z[:wide], workspace.common_error[:wide], workspace.own_error[:wide]
    return Batch(some, count, common, own, weights, sides, z, error, top_z, common_error, own_error)


@jit
def _judge(batch: Any, mix: Any, scale: Any, w: Any, b: Any) -> Any:
    """Errors of the batch's rows; returns the sums of their losses and of the errors. With a mix the kernel rule first
    takes a step."""
    if mix is None:
        batch.z.fill(b)
        add_products(w, scale[0], batch.c, batch.z)
        add_products(w, scale[1], batch.d, batch.z)
        return errors(batch.z, batch.sides, batch.weights, batch.error)
    n, weights, sides = batch.rows, batch.weights, batch.sides
    logits(mix, batch.c, scale[0], batch.d, scale[1], n, w, b)
    weigh(mix, batch.c, scale[0], batch.d, scale[1], n, weights, sides, batch.samples)
    loss = mixed_errors(mix, sides, weights)
    copy(mix.error, batch.error)
    return loss


@jit
def _shrink(scale: Any, pace: Any, steps: Any) -> None:
    """Weight decay of all rows that the device holds."""
    scale[0] *= _rest(pace * steps.weight_decay, steps.common_rate)
    scale[1] *= _rest(pace * steps.weight_decay, steps.own_rate)


@jit
def _pull(batch: Any, scale: Any, dim: int, steps: Any, gradient: Any) -> Any:
    """The gradient of w without a mix; returns the regularisers."""
    away, small, squared, terms = steps.away, steps.small, steps.squared, np.float32(0.0)
    common, own, error, weights = scale[0], scale[1], batch.error, batch.weights
    for k in range(dim):
        c, d, pull = batch.c[k], batch.d[k], np.float32(0.0)
        for i in range(len(error)):
            x, y = common * c[i], own * d[i]
            pull += error[i] * (x + y)
            terms += weights[i] * (small * _norm(x, squared)[0] - away * (y - x) * (y - x))
        gradient[k] = pull
    return terms / np.float32(dim)


@jit
def _push(batch: Any, mix: Any, scale: Any, w: Any, dim: int, pace: Any, steps: Any, gradient: Any) -> Any:
    """The rows of c and d step; returns the regularisers. Also gives the gradient of w at the rows before."""
    away, small, squared, terms = steps.away, steps.small, steps.squared, np.float32(0.0)
    one = np.float32(1.0)
    a = one if mix is None else mix.state[1]
    common, own, rest, error, weights = a * scale[0], scale[1], one - a, batch.error, batch.weights
    _shrink(scale, pace, steps)
    by, by_own = pace * steps.common_rate / scale[0], pace * steps.own_rate / scale[1]
    by_common, push, sparse = a * by, np.float32(2.0) * away / np.float32(dim), small / np.float32(dim)
    received = batch.c if mix is None else shaped(mix.g, dim, batch.rows)
    slopes = batch.c if mix is None else shaped(mix.slope, dim, batch.rows)
    for k in range(dim):
        c, d, g, slope, pull, weight = batch.c[k], batch.d[k], received[k], slopes[k], np.float32(0.0), w[k]
        for i in range(len(error)):
            x, y = common * c[i], own * d[i]
            if mix is not None:
                x += rest * g[i]
            apart = y - x
            size, steep = _norm(x, squared)
            pull += error[i] * (x + y)
            terms += weights[i] * (small * size - away * apart * apart)
            pulled, pushed = error[i] * weight, push * weights[i] * apart
            change = by_common * (pulled + pushed + sparse * weights[i] * steep)
            if mix is not None:
                change += by * slope[i]
            c[i] -= change
            d[i] -= by_own * (pulled - pushed)
        gradient[k] = pull
    return terms / np.float32(dim)


@jit
def _turn(w: Any, b: Any, gradient: Any, total: Any, pace: Any, steps: Any) -> None:
    """w and b step."""
    keep = _rest(pace * steps.rate, steps.weight_decay)
    for k in range(len(w)):
        w[k] = keep * w[k] - pace * steps.rate * gradient[k]
    b[0] = _moved(b[0], keep, pace * total, steps.rate)


@jit
def _step(batch: Any, mix: Any, scale: Any, w: Any, b: Any, dim: int, gradient: Any, pace: Any, steps: Any,
          loss: Any) -> Any:  # fmt: skip
    """One step on a batch; returns its mean loss. With alternate steps rows step after w and b, and the loss is that
    between the two.

    What the device holds is scale[0] c and scale[1] d: weight decay, which shrinks all its rows, only changes a scale.
    With a mix (None: without) all but weight decay sees a c + (1 - a) g in place of c.
    """
    value, total = _judge(batch, mix, scale, w, b[0])
    if steps.alternate:
        loss[0] += value + _pull(batch, scale, dim, steps, gradient)
        loss[1] += 1
        _turn(w, b, gradient, total, pace, steps)
        value, total = _judge(batch, mix, scale, w, b[0])
    if mix is not None:
        value += redundancy(mix, batch.c, scale[0], batch.rows)
    value += _push(batch, mix, scale, w, dim, pace, steps, gradient)
    if not steps.alternate:
        _turn(w, b, gradient, total, pace, steps)
    return value


@jit
def _sharp(batch: Any, scale: Any, w: Any, b: Any, dim: int, gradient: Any, uphill: Any, pace: Any, steps: Any) -> Any:
    """`_step` along gradients taken uphill (`mathematics.sharpness`): c moved for its own, u, b and d for theirs."""
    zero, weights, error, squared = np.float32(0.0), batch.weights, batch.error, steps.squared
    value, off = _judge(batch, None, scale, w, b[0])
    value += _pull(batch, scale, dim, steps, gradient)
    common, own = scale[0], scale[1]
    push, sparse = np.float32(2.0) * steps.away / np.float32(dim), steps.small / np.float32(dim)
    of_common, of_own = zero, off * off
    for k in range(dim):
        c, d, weight = batch.c[k], batch.d[k], w[k]
        for i in range(len(error)):
            x, y = common * c[i], own * d[i]
            pulled, pushed = error[i] * weight, push * weights[i] * (y - x)
            to_common = pulled + pushed + sparse * weights[i] * _norm(x, squared)[1]
            of_common += to_common * to_common
            of_own += (pulled - pushed) * (pulled - pushed)
        of_own += gradient[k] * gradient[k]
    least = np.float32(1e-12)
    up_common = steps.common_rho / max(np.float32(math.sqrt(of_common)), least)
    up = steps.rho / max(np.float32(math.sqrt(of_own)), least)
    for k in range(dim):
        uphill[k] = w[k] + up * gradient[k]
    z_common, z_own = batch.z, batch.top_z
    z_common.fill(b[0])
    z_own.fill(b[0] + up * off)
    for k in range(dim):
        c, d, weight, top = batch.c[k], batch.d[k], w[k], uphill[k]
        for i in range(len(error)):
            x, y = common * c[i], own * d[i]
            pulled, pushed = error[i] * weight, push * weights[i] * (y - x)
            to_common = pulled + pushed + sparse * weights[i] * _norm(x, squared)[1]
            z_common[i] += weight * (x + up_common * to_common + y)
            z_own[i] += top * (x + y + up * (pulled - pushed))
    error_common, error_own = batch.common_error, batch.own_error
    errors(z_common, batch.sides, weights, error_common)
    _, off_top = errors(z_own, batch.sides, weights, error_own)
    _shrink(scale, pace, steps)
    by_common, by_own = pace * steps.common_rate / scale[0], pace * steps.own_rate / scale[1]
    for k in range(dim):
        c, d, weight, top, pull = batch.c[k], batch.d[k], w[k], uphill[k], zero
        for i in range(len(error)):
            x, y = common * c[i], own * d[i]
            pulled, pushed = error[i] * weight, push * weights[i] * (y - x)
            x_top = x + up_common * (pulled + pushed + sparse * weights[i] * _norm(x, squared)[1])
            y_top = y + up * (pulled - pushed)
            pull += error_own[i] * (x + y_top)
            steep = push * (y - x_top) + sparse * _norm(x_top, squared)[1]
            c[i] -= by_common * (error_common[i] * weight + weights[i] * steep)
            d[i] -= by_own * (error_own[i] * top - push * weights[i] * (y_top - x))
        gradient[k] = pull
    _turn(w, b, gradient, off_top, pace, steps)
    return value


@jit
def _fold(table: Any, columns: Any, scale: Any, which: int) -> None:
    """Multiply rows, and those that are columns, by their scale."""
    for row in range(len(table)):
        for k in range(table.shape[1]):
            table[row, k] *= scale[which]
    for k in range(len(columns)):
        for i in range(columns.shape[1]):
            columns[k, i] *= scale[which]
    scale[which] = 1.0


@jit
def _device(workspace: Any, held: int, count: int, mix: Any, emphasis: Any, key: Any, steps: Any, loss: Any) -> None:
    """A device's passes over its samples, in place, until its mean loss since the round began settles. Where one batch
    holds all samples, its columns stay from pass to pass."""
    c, d, scale = workspace.c[:held], workspace.d[:held], workspace.scale
    w, b, gradient, dim = workspace.w, workspace.b, workspace.gradient, workspace.c.shape[1]
    rows, times, seen = workspace.rows, workspace.times, workspace.seen
    drawn, slots, sorting = workspace.samples.drawn[:count], workspace.slots, workspace.samples.sorting
    size, several = min(steps.batch, count), count > steps.batch
    scale.fill(1.0)
    pace, sum_, last = np.float32(1.0), 0.0, 0.0
    batch = _stack(workspace, mix, emphasis, c, d, distinct(drawn[:size], seen, rows, times), size)
    for epoch in range(steps.epochs):
        if several:
            shuffled(key, epoch, count, sorting)
            for sample in range(count):
                slots[sample] = drawn[sorting.order[sample]]
        for start in range(0, count, steps.batch):
            size = min(count - start, steps.batch)
            if several:
                some = distinct(slots[start : start + size], seen, rows, times)
                batch = _stack(workspace, mix, emphasis, c, d, some, size)
            if steps.rho > 0 or steps.common_rho > 0:
                value = _sharp(batch, scale, w, b, dim, gradient, workspace.uphill, pace, steps)
            else:
                value = _step(batch, mix, scale, w, b, dim, gradient, pace, steps, loss)
            if several:
                scatter(batch.c, rows[: batch.rows], c)
                scatter(batch.d, rows[: batch.rows], d)
            if scale[0] < _FAINT:
                _fold(c, batch.c, scale, 0)
            if scale[1] < _FAINT:
                _fold(d, batch.d, scale, 1)
            pace *= steps.step_decay
            sum_ += value * size
            loss[0] += value
            loss[1] += 1
        mean = sum_ / ((epoch + 1) * count)
        if epoch > 0 and abs(mean - last) < steps.tolerance * abs(last):
            break
        last = mean
    if not several:
        scatter(batch.c, rows[:held], c)
        scatter(batch.d, rows[:held], d)
    _fold(c, batch.c, scale, 0)
    _fold(d, batch.d, scale, 1)


@jit
def _own_judge(workspace: Any) -> None:
    """The device is its own judge: its u with b after it."""
    dim = workspace.c.shape[1]
    copy(workspace.w, workspace.judge[:dim])
    workspace.judge[dim] = workspace.b[0]


@jit
def _score(slot_of: Any, c: Any, shared: Any, judge: Any, items: Any, out: Any) -> None:
    """u . c + b with the device's rows c; with the server's where it has none."""
    dim = c.shape[1]
    for place in range(len(items)):
        item = items[place]
        slot, value = slot_of[item], judge[dim]
        row = c[slot] if slot >= 0 else shared[item]
        for k in range(dim):
            value += judge[k] * row[k]
        out[place] = value


@kernel
def additive_round(
    parts: Any, steps: Any, noise: Any, workspace: Any, mix: Any, emphasis: Any, histories: Any, tables: Any,
    players: Any, out: Any,
) -> None:  # fmt: skip
    """The round of one thread's users: their u, b and d step in place, the changes of c are added up. Items are scored
    with each device's own c, by its u and b or those of a judge; what d adds to the scores is left out. `mix`: see
    `kernels.plgc`; None: nothing is mixed. `emphasis`: None where all samples weigh the same. `noise`: None where
    there is none."""
    samples, positive, b, dim = workspace.samples, workspace.positive, workspace.b, workspace.c.shape[1]
    part = count_on(parts.next)
    while part < len(parts.ptr) - 1:
        for index in range(parts.ptr[part], parts.ptr[part + 1]):
            user, key = players.users[index], players.keys[index]
            held, count, stride = draw_rows(samples, histories, user, key, steps.negatives)
            ids, c, d = samples.ids[:held], workspace.c[:held], workspace.d[:held]
            positive[:held] = False
            for sample in range(0, count, stride):
                positive[samples.drawn[sample]] = True
            look_up(tables.common, ids, c)
            if tables.keeps:
                look_up(tables.start, ids, d)
                found = recall(tables.store, user, samples.slot_of, workspace.kept, d)
            else:
                d.fill(0)
            copy(tables.weights[user], workspace.w[:dim])
            b[0] = tables.biases[user]
            begin(mix, user, c)
            emphasise(emphasis, user, samples.slot_of, held)
            _device(workspace, held, count, mix, emphasis, key, steps, out.loss[part])
            end(mix, user)
            copy(workspace.w[:dim], tables.weights[user])
            tables.biases[user] = b[0]
            place = players.places[index]
            _own_judge(workspace)
            judge = players.judges[place] if len(players.judges) else workspace.judge
            _score(samples.slot_of, c, tables.common, judge, players.ask[place], out.scores[place])
            if noise is not None:
                laplace(c, ids, key, 0, noise)
            send(ids, c, tables.common, out.total[part], out.sent[index])
            if tables.keeps:
                keep(tables.store, user, samples.slot_of, ids, workspace.kept, found, d)
            else:
                release(samples, held)
        merge(parts.ended, part, out)
        part = count_on(parts.next)


@kernel
def additive_scores(parts: Any, number_of: Any, tables: Any, request: Any) -> None:
    """Scores with the server's rows and each device's own, of one thread's users. `number_of` [M], all -1: an item's
    number among the rows that the device holds."""
    shared, start, keeps, users, scores = tables.common, tables.start, tables.keeps, request.users, request.scores
    held, pages, page_ids, page_rows = tables.store
    dim, page = start.shape[1], page_ids.shape[1]
    part = count_on(parts.next)
    while part < len(parts.ptr) - 1:
        for index in range(parts.ptr[part], parts.ptr[part + 1]):
            user = users[index]
            w, items = tables.weights[user], request.ask[index]
            if keeps:
                for k in range(held[user]):
                    number_of[page_ids[pages[user, k // page], k % page]] = k
            for place in range(len(items)):
                item = items[place]
                value, k = tables.biases[user], number_of[item]
                for j in range(dim):
                    value += w[j] * shared[item, j]
                if keeps:
                    row = page_rows[pages[user, k // page], k % page] if k >= 0 else start[item]
                    for j in range(dim):
                        value += w[j] * row[j]
                scores[index, place] = value
            if keeps:
                for k in range(held[user]):
                    number_of[page_ids[pages[user, k // page], k % page]] = -1
        part = count_on(parts.next)
