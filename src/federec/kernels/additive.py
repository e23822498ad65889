"""The fused round of methods with an additive score, sigma(u_i . (c_j + d_ij) + b_i): shared rows c, and rows d that a
device keeps for itself. One device at a time per thread, its rows in cache from drawing to writing back."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from federec.kernels.compiling import exact, jit, kernel
from federec.kernels.cpu import (
    Samples,
    distinct,
    draw_rows,
    emphasise,
    floats,
    laplace,
    look_up,
    make_samples,
    release,
    send,
    shuffled,
    sigmoid,
    summed_turns,
    turns,
)
from federec.kernels.pages import Pages, keep, recall
from federec.kernels.plgc import begin, end, redundancy, weigh

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
    positive: Any
    """[rows]"""
    c: Any
    d: Any
    """[rows, dim] the device's rows, less their scales; d is 0 where there is none."""
    scale: Any
    """[2] what c and d are multiplied by."""
    b: Any
    gradient: Any
    uphill: Any
    slots: Any
    """Row of each sample, shuffled."""
    seen: Any
    rows: Any
    times: Any
    """Of a batch: see `cpu.distinct`."""


def additive_workspace(n_items: int, most: int, dim: int) -> Workspace:
    """For any device with at most `most` samples."""
    rows = min(most, n_items)
    return Workspace(
        samples=make_samples(n_items, most),
        positive=np.empty(rows, np.bool_),
        c=floats(rows, dim),
        d=floats(rows, dim),
        scale=floats(2),
        b=floats(1),
        gradient=floats(dim),
        uphill=floats(dim),
        slots=np.empty(most, np.int32),
        seen=np.full(rows, -1, np.int32),
        rows=np.empty(rows, np.int32),
        times=np.empty(rows, np.int32),
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
def _miss(z: Any, e: Any, positive: bool) -> Any:
    """sigma(z) - y, of which e = exp(-|z|) is known."""
    p = sigmoid(z, e)
    return p - np.float32(1.0) if positive else p


@jit
def _exp(z: Any) -> Any:
    """exp(-|z|)"""
    return np.float32(math.exp(-abs(z)))


@jit
def _step(c: Any, d: Any, mix: Any, emphasis: Any, scale: Any, rows: Any, times: Any, positive: Any, w: Any, b: Any,
          gradient: Any, pace: Any, steps: Any) -> float:  # fmt: skip
    """One step on a batch that holds row rows[i] times[i] times; returns its mean loss.

    What the device holds is scale[0] c and scale[1] d: weight decay, which shrinks all its rows, only changes a scale.
    Rows are distinct, so each is stepped as soon as its gradient is known. With a mix (None: without) all but weight
    decay sees a c + (1 - a) g in place of c. `emphasis`: None where all samples weigh the same.
    """
    dim = len(w)
    more, a = 0.0, np.float32(1.0)
    if mix is not None:
        weigh(mix, c, scale[0], d, scale[1], rows, times, positive, w, b[0])
        more, a = redundancy(mix, c, scale[0], rows), mix.state[1]
    n = 0
    for i in range(len(rows)):
        n += times[i]
    inverse = np.float32(1.0 / n)
    away, small, squared = steps.away, steps.small, steps.squared
    common, own, rest = a * scale[0], scale[1], np.float32(1.0) - a
    scale[0] *= _rest(pace * steps.weight_decay, steps.common_rate)
    scale[1] *= _rest(pace * steps.weight_decay, steps.own_rate)
    by_common, by_own = a * pace * steps.common_rate / scale[0], pace * steps.own_rate / scale[1]
    loss, product, total = 0.0, 1.0, np.float32(0.0)
    gradient.fill(0)
    for i in range(len(rows)):
        row = rows[i]
        z = b[0]
        for k in range(dim):
            x = common * c[row, k]
            if mix is not None:
                x += rest * mix.received[row, k]
            z += w[k] * (x + own * d[row, k])
        # Cross-entropy max(s, 0) + log(1 + exp(-|s|)); the factors 1 + exp are multiplied before taking logarithms.
        e = _exp(z)
        s = -z if positive[row] else z
        weight = np.float32(times[i]) * inverse
        if emphasis is None:
            loss += times[i] * max(s, np.float32(0.0))
            for _ in range(times[i]):
                product *= 1.0 + e
                if product > 1e100:
                    loss += math.log(product)
                    product = 1.0
        else:
            weight *= emphasis.of_row[row]
            loss += weight * n * (max(s, np.float32(0.0)) + math.log1p(e))
        error = _miss(z, e, positive[row]) * weight
        total += error
        each = weight / np.float32(dim)
        push, sparse = np.float32(2.0) * away * each, small * each
        terms = np.float32(0.0)
        for k in range(dim):
            x, y = common * c[row, k], own * d[row, k]
            if mix is not None:
                x += rest * mix.received[row, k]
            apart = y - x
            gradient[k] += error * (x + y)
            size, slope = _norm(x, squared)
            terms += small * size - away * apart * apart
            pulled, pushed = error * w[k], push * apart
            c[row, k] -= by_common * (pulled + pushed + sparse * slope)
            d[row, k] -= by_own * (pulled - pushed)
        if emphasis is None:
            loss += terms * times[i] / dim
        else:
            loss += terms * weight * n / dim
    if mix is not None:
        for i in range(len(rows)):
            for k in range(dim):
                c[rows[i], k] -= pace * steps.common_rate / scale[0] * mix.slope[i, k]
    keep = _rest(pace * steps.rate, steps.weight_decay)
    for k in range(dim):
        w[k] = keep * w[k] - pace * steps.rate * gradient[k]
    b[0] = _moved(b[0], keep, pace * total, steps.rate)
    return more + (loss + math.log(product)) / n


@jit
def _sharp(c: Any, d: Any, emphasis: Any, scale: Any, rows: Any, times: Any, positive: Any, w: Any, b: Any,
           gradient: Any, uphill: Any, pace: Any, steps: Any) -> float:  # fmt: skip
    """`_step` along gradients taken uphill (`mathematics.sharpness`): c moved for its own, u, b and d for theirs."""
    dim, n = len(w), 0
    for i in range(len(rows)):
        n += times[i]
    inverse, away, small, squared = np.float32(1.0 / n), steps.away, steps.small, steps.squared
    common, own = scale[0], scale[1]
    loss, off = 0.0, np.float32(0.0)
    of_common, of_own = np.float32(0.0), np.float32(0.0)
    gradient.fill(0)
    for i in range(len(rows)):
        row, z, terms = rows[i], b[0], np.float32(0.0)
        weight = np.float32(times[i]) * inverse
        if emphasis is not None:
            weight *= emphasis.of_row[row]
        push, sparse = np.float32(2.0) * away * weight / np.float32(dim), small * weight / np.float32(dim)
        for k in range(dim):
            z += w[k] * (common * c[row, k] + own * d[row, k])
        error = _miss(z, _exp(z), positive[row]) * weight
        off += error
        for k in range(dim):
            x, y = common * c[row, k], own * d[row, k]
            terms += small * _norm(x, squared)[0] - away * (y - x) * (y - x)
            to_common = error * w[k] + push * (y - x) + sparse * _norm(x, squared)[1]
            to_own = error * w[k] - push * (y - x)
            of_common += to_common * to_common
            of_own += to_own * to_own
            gradient[k] += error * (x + y)
        s = -z if positive[row] else z
        loss += weight * (max(s, np.float32(0.0)) + math.log1p(math.exp(-abs(s))) + terms / dim)
    of_own += off * off
    for k in range(dim):
        of_own += gradient[k] * gradient[k]
    least = np.float32(1e-12)
    up_common = steps.common_rho / max(np.float32(math.sqrt(of_common)), least)
    up = steps.rho / max(np.float32(math.sqrt(of_own)), least)
    for k in range(dim):
        uphill[k] = w[k] + up * gradient[k]
    top, off_top = b[0] + up * off, np.float32(0.0)
    scale[0] *= _rest(pace * steps.weight_decay, steps.common_rate)
    scale[1] *= _rest(pace * steps.weight_decay, steps.own_rate)
    by_common, by_own = pace * steps.common_rate / scale[0], pace * steps.own_rate / scale[1]
    gradient.fill(0)
    for i in range(len(rows)):
        row, z, z_common, z_own = rows[i], b[0], b[0], top
        weight = np.float32(times[i]) * inverse
        if emphasis is not None:
            weight *= emphasis.of_row[row]
        push, sparse = np.float32(2.0) * away * weight / np.float32(dim), small * weight / np.float32(dim)
        for k in range(dim):
            z += w[k] * (common * c[row, k] + own * d[row, k])
        error = _miss(z, _exp(z), positive[row]) * weight
        for k in range(dim):
            x, y = common * c[row, k], own * d[row, k]
            pushed = push * (y - x)
            z_common += w[k] * (x + up_common * (error * w[k] + pushed + sparse * _norm(x, squared)[1]) + y)
            z_own += uphill[k] * (x + y + up * (error * w[k] - pushed))
        error_common = _miss(z_common, _exp(z_common), positive[row]) * weight
        error_own = _miss(z_own, _exp(z_own), positive[row]) * weight
        off_top += error_own
        for k in range(dim):
            x, y = common * c[row, k], own * d[row, k]
            pushed = push * (y - x)
            x_top = x + up_common * (error * w[k] + pushed + sparse * _norm(x, squared)[1])
            y_top = y + up * (error * w[k] - pushed)
            gradient[k] += error_own * (x + y_top)
            c[row, k] -= by_common * (error_common * w[k] + push * (y - x_top) + sparse * _norm(x_top, squared)[1])
            d[row, k] -= by_own * (error_own * uphill[k] - push * (y_top - x))
    keep = _rest(pace * steps.rate, steps.weight_decay)
    for k in range(dim):
        w[k] = keep * w[k] - pace * steps.rate * gradient[k]
    b[0] = _moved(b[0], keep, pace * off_top, steps.rate)
    return loss


@jit
def _fold(table: Any, scale: Any, which: int) -> None:
    """Multiply rows by their scale."""
    for row in range(len(table)):
        for k in range(table.shape[1]):
            table[row, k] *= scale[which]
    scale[which] = 1.0


@jit
def _device(
    workspace: Any, held: int, count: int, mix: Any, emphasis: Any, w: Any, key: Any, steps: Any, loss: Any
) -> None:
    """A device's passes over its samples, in place, until its mean loss since the round began settles."""
    c, d, scale = workspace.c[:held], workspace.d[:held], workspace.scale
    b, gradient = workspace.b, workspace.gradient
    rows, times, seen, positive = workspace.rows, workspace.times, workspace.seen, workspace.positive
    drawn, slots, sorting = workspace.samples.drawn[:count], workspace.slots, workspace.samples.sorting
    batch, several = steps.batch, count > steps.batch
    scale.fill(1.0)
    pace, sum_, last = np.float32(1.0), 0.0, 0.0
    some = 0 if several else distinct(drawn, seen, rows, times)
    for epoch in range(steps.epochs):
        if several:
            shuffled(key, epoch, count, sorting)
            for sample in range(count):
                slots[sample] = drawn[sorting.order[sample]]
        for start in range(0, count, batch):
            stop = min(count, start + batch)
            if several:
                some = distinct(slots[start:stop], seen, rows, times)
            if steps.rho > 0 or steps.common_rho > 0:
                uphill = workspace.uphill
                value = _sharp(c, d, emphasis, scale, rows[:some], times, positive, w, b, gradient, uphill, pace, steps)
            else:
                value = _step(c, d, mix, emphasis, scale, rows[:some], times, positive, w, b, gradient, pace, steps)
            if scale[0] < _FAINT:
                _fold(c, scale, 0)
            if scale[1] < _FAINT:
                _fold(d, scale, 1)
            pace *= steps.step_decay
            sum_ += value * (stop - start)
            loss[0] += value
            loss[1] += 1
        mean = sum_ / ((epoch + 1) * count)
        if epoch > 0 and abs(mean - last) < steps.tolerance * abs(last):
            break
        last = mean
    _fold(c, scale, 0)
    _fold(d, scale, 1)


@kernel
def additive_round(
    parts: Any, steps: Any, noise: Any, workspace: Any, mix: Any, emphasis: Any, histories: Any, tables: Any,
    players: Any, out: Any,
) -> None:  # fmt: skip
    """The round of one thread's users: their u, b and d step in place, the changes of c are added up. `mix`: see
    `kernels.plgc`; None: nothing is mixed. `emphasis`: None where all samples weigh the same. `noise`: None where
    there is none."""
    samples, positive, b = workspace.samples, workspace.positive, workspace.b
    for part, index in summed_turns(parts, out):
        user, key = players.users[index], players.keys[index]
        held, count, stride = draw_rows(samples, histories, user, key, steps.negatives)
        ids, c, d = samples.ids[:held], workspace.c[:held], workspace.d[:held]
        positive[:held] = False
        for sample in range(0, count, stride):
            positive[samples.drawn[sample]] = True
        look_up(tables.common, ids, c)
        if tables.keeps:
            look_up(tables.start, ids, d)
            recall(tables.store, user, samples.slot_of, d)
        else:
            d.fill(0)
        b[0] = tables.biases[user]
        begin(mix, user, c)
        emphasise(emphasis, user, samples.slot_of, held)
        _device(workspace, held, count, mix, emphasis, tables.weights[user], key, steps, out.loss[part])
        end(mix, user)
        tables.biases[user] = b[0]
        if noise is not None:
            laplace(c, ids, key, 0, noise)
        send(ids, c, tables.common, out.total[part], out.sent[index])
        if tables.keeps:
            keep(tables.store, user, samples.slot_of, ids, d)
        else:
            release(samples, held)


@kernel
def additive_scores(parts: Any, tables: Any, request: Any) -> None:
    """Scores with the server's rows and each device's own, of one thread's users."""
    shared, start, keeps, users, scores = tables.common, tables.start, tables.keeps, request.users, request.scores
    held, pages, page_ids, page_rows = tables.store
    n_items, dim = start.shape
    page = page_ids.shape[1]
    number_of = np.full(n_items, -1, np.int32)  # an item's number among the rows that the device holds
    for index in turns(parts):
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
