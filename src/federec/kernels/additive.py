"""The fused round of methods with an additive score, sigma(u_i . (c_j + d_ij) + b_i): shared rows c, and rows d that a
device keeps for itself. One device at a time per thread, its rows in cache from drawing to writing back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from federec.kernels.cpu import DIGIT, distinct, draw, jit, kernel, send, shuffled
from federec.kernels.pages import keep, recall
from federec.kernels.plgc import begin, end, redundancy, weigh

LR, COMMON_LR, OWN_LR, AWAY, SMALL, SQUARED, WEIGHT_DECAY, STEP_DECAY, TOLERANCE, RHO, COMMON_RHO = range(11)
"""Places in `facts`: steps of u and b, of c and of d at the start of the round; weights of the two regularisers, and
whether that of c is its square; how far u, b and d, and c, are moved uphill before their gradient is taken; the rest as
the method names it."""

_FAINT = np.float32(1e-3)  # a scale below which rows are multiplied by it, before it loses digits


@jit
def _step(c: Any, d: Any, mix: Any, scale: Any, rows: Any, times: Any, positive: Any, w: Any, b: Any, gradient: Any,
          pace: Any, facts: Any) -> float:  # fmt: skip
    """One step on a batch that holds row rows[i] times[i] times; returns its mean loss.

    What the device holds is scale[0] c and scale[1] d: weight decay, which shrinks all its rows, only changes a scale.
    Rows are distinct, so each is stepped as soon as its gradient is known. With a mix (None: without) all but weight
    decay sees a c + (1 - a) g in place of c.
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
    away, small, squared = facts[AWAY], facts[SMALL], facts[SQUARED] > 0
    common, own, rest = a * scale[0], scale[1], np.float32(1.0) - a
    keep_common = np.float32(1.0) - pace * facts[COMMON_LR] * facts[WEIGHT_DECAY]
    keep_own = np.float32(1.0) - pace * facts[OWN_LR] * facts[WEIGHT_DECAY]
    scale[0] *= keep_common
    scale[1] *= keep_own
    by_common, by_own = a * pace * facts[COMMON_LR] / scale[0], pace * facts[OWN_LR] / scale[1]
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
        e = math.exp(-abs(z))
        inside = np.float32(1.0) / (np.float32(1.0) + e)
        p = inside if z >= 0 else e * inside
        s = -z if positive[row] else z
        loss += times[i] * max(s, np.float32(0.0))
        for _ in range(times[i]):
            product *= 1.0 + e
            if product > 1e100:
                loss += math.log(product)
                product = 1.0
        weight = np.float32(times[i]) * inverse
        error = (p - np.float32(1.0) if positive[row] else p) * weight
        total += error
        share = weight / np.float32(dim)
        push, sparse = np.float32(2.0) * away * share, small * share
        terms = np.float32(0.0)
        for k in range(dim):
            x, y = common * c[row, k], own * d[row, k]
            if mix is not None:
                x += rest * mix.received[row, k]
            apart = y - x
            gradient[k] += error * (x + y)
            if squared:
                size, slope = x * x, np.float32(2.0) * x
            else:
                size, slope = abs(x), np.float32(x > 0) - np.float32(x < 0)
            terms += small * size - away * apart * apart
            pulled, pushed = error * w[k], push * apart
            c[row, k] -= by_common * (pulled + pushed + sparse * slope)
            d[row, k] -= by_own * (pulled - pushed)
        loss += terms * times[i] / dim
    if mix is not None:
        for i in range(len(rows)):
            for k in range(dim):
                c[rows[i], k] -= pace * facts[COMMON_LR] / scale[0] * mix.slope[i, k]
    keep = np.float32(1.0) - pace * facts[LR] * facts[WEIGHT_DECAY]
    for k in range(dim):
        w[k] = keep * w[k] - pace * facts[LR] * gradient[k]
    b[0] = keep * b[0] - pace * facts[LR] * total
    return more + (loss + math.log(product)) / n


@jit
def _slope(x: Any, squared: bool) -> Any:
    """Of the norm of c: 2 x or the sign of x."""
    return np.float32(2.0) * x if squared else np.float32(x > 0) - np.float32(x < 0)


@jit
def _miss(z: Any, positive: bool) -> Any:
    """sigma(z) - y."""
    e = np.float32(math.exp(-abs(z)))
    inside = np.float32(1.0) / (np.float32(1.0) + e)
    p = inside if z >= 0 else e * inside
    return p - np.float32(1.0) if positive else p


@jit
def _sharp(c: Any, d: Any, scale: Any, rows: Any, times: Any, positive: Any, w: Any, b: Any, gradient: Any, uphill: Any,
           pace: Any, facts: Any) -> float:  # fmt: skip
    """`_step` along gradients taken uphill (`mathematics.sharpness`): c moved for its own, u, b and d for theirs."""
    dim, n = len(w), 0
    for i in range(len(rows)):
        n += times[i]
    inverse, away, small, squared = np.float32(1.0 / n), facts[AWAY], facts[SMALL], facts[SQUARED] > 0
    common, own = scale[0], scale[1]
    loss, off = 0.0, np.float32(0.0)
    of_common, of_own = np.float32(0.0), np.float32(0.0)
    gradient.fill(0)
    for i in range(len(rows)):
        row, z, terms = rows[i], b[0], np.float32(0.0)
        weight = np.float32(times[i]) * inverse
        push, sparse = np.float32(2.0) * away * weight / np.float32(dim), small * weight / np.float32(dim)
        for k in range(dim):
            z += w[k] * (common * c[row, k] + own * d[row, k])
        error = _miss(z, positive[row]) * weight
        off += error
        for k in range(dim):
            x, y = common * c[row, k], own * d[row, k]
            terms += small * (x * x if squared else abs(x)) - away * (y - x) * (y - x)
            to_common = error * w[k] + push * (y - x) + sparse * _slope(x, squared)
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
    up_common = facts[COMMON_RHO] / max(np.float32(math.sqrt(of_common)), least)
    up = facts[RHO] / max(np.float32(math.sqrt(of_own)), least)
    for k in range(dim):
        uphill[k] = w[k] + up * gradient[k]
    top, off_top = b[0] + up * off, np.float32(0.0)
    keep_common = np.float32(1.0) - pace * facts[COMMON_LR] * facts[WEIGHT_DECAY]
    keep_own = np.float32(1.0) - pace * facts[OWN_LR] * facts[WEIGHT_DECAY]
    scale[0] *= keep_common
    scale[1] *= keep_own
    by_common, by_own = pace * facts[COMMON_LR] / scale[0], pace * facts[OWN_LR] / scale[1]
    gradient.fill(0)
    for i in range(len(rows)):
        row, z, z_common, z_own = rows[i], b[0], b[0], top
        weight = np.float32(times[i]) * inverse
        push, sparse = np.float32(2.0) * away * weight / np.float32(dim), small * weight / np.float32(dim)
        for k in range(dim):
            z += w[k] * (common * c[row, k] + own * d[row, k])
        error = _miss(z, positive[row]) * weight
        for k in range(dim):
            x, y = common * c[row, k], own * d[row, k]
            pushed = push * (y - x)
            z_common += w[k] * (x + up_common * (error * w[k] + pushed + sparse * _slope(x, squared)) + y)
            z_own += uphill[k] * (x + y + up * (error * w[k] - pushed))
        error_common, error_own = _miss(z_common, positive[row]) * weight, _miss(z_own, positive[row]) * weight
        off_top += error_own
        for k in range(dim):
            x, y = common * c[row, k], own * d[row, k]
            pushed = push * (y - x)
            x_top = x + up_common * (error * w[k] + pushed + sparse * _slope(x, squared))
            y_top = y + up * (error * w[k] - pushed)
            gradient[k] += error_own * (x + y_top)
            c[row, k] -= by_common * (error_common * w[k] + push * (y - x_top) + sparse * _slope(x_top, squared))
            d[row, k] -= by_own * (error_own * uphill[k] - push * (y_top - x))
    keep = np.float32(1.0) - pace * facts[LR] * facts[WEIGHT_DECAY]
    for k in range(dim):
        w[k] = keep * w[k] - pace * facts[LR] * gradient[k]
    b[0] = keep * b[0] - pace * facts[LR] * off_top
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
    c: Any, d: Any, mix: Any, w: Any, b: Any, slots: Any, positive: Any, key: Any, batch: int, epochs: int, facts: Any,
    loss: Any, room: Any,
) -> None:  # fmt: skip
    """A device's passes over its samples, in place, until its mean loss since the round began settles."""
    scale, gradient, uphill, rows, times, seen, order, sort, spare, spare_sort, bins, shuffle = room
    scale.fill(1.0)
    count = len(slots)
    pace, sum_, last = np.float32(1.0), 0.0, 0.0
    held = distinct(slots, seen, rows, times) if count <= batch else 0
    for epoch in range(epochs):
        if count > batch:
            shuffled(key, epoch, count, order, sort, spare, spare_sort, bins)
            for sample in range(count):
                shuffle[sample] = slots[order[sample]]
        for start in range(0, count, batch):
            stop = min(count, start + batch)
            if count > batch:
                held = distinct(shuffle[start:stop], seen, rows, times)
            if facts[RHO] > 0 or facts[COMMON_RHO] > 0:
                value = _sharp(c, d, scale, rows[:held], times, positive, w, b, gradient, uphill, pace, facts)
            else:
                value = _step(c, d, mix, scale, rows[:held], times, positive, w, b, gradient, pace, facts)
            if scale[0] < _FAINT:
                _fold(c, scale, 0)
            if scale[1] < _FAINT:
                _fold(d, scale, 1)
            pace *= facts[STEP_DECAY]
            sum_ += value * (stop - start)
            loss[0] += value
            loss[1] += 1
        mean = sum_ / ((epoch + 1) * count)
        if epoch > 0 and abs(mean - last) < facts[TOLERANCE] * abs(last):
            break
        last = mean
    _fold(c, scale, 0)
    _fold(d, scale, 1)


def additive_room(n_items: int, samples: int, dim: int) -> tuple[Any, ...]:
    """Room for any device with at most so many samples."""
    rows = min(samples, n_items)
    sorting = (*(np.empty(samples, np.int32) for _ in range(4)), np.empty(1 << DIGIT, np.int32))
    batch = np.empty(rows, np.int32), np.empty(rows, np.int32), np.full(rows, -1, np.int32)
    return (
        np.full(n_items, -1, np.int32),
        np.empty(n_items, np.int32),
        np.empty(rows, np.int32),
        np.empty(rows, np.bool_),
        np.empty(samples, np.int32),
        np.empty(samples, np.int32),
        np.empty((rows, dim), np.float32),
        np.zeros((rows, dim), np.float32),
        np.empty(1, np.float32),
        (*(np.empty(size, np.float32) for size in (2, dim, dim)), *batch, *sorting, np.empty(samples, np.int32)),
    )


@kernel
def additive_round(
    first: int, every: int, tables: Any, room: Any, mix: Any, histories: Any, negatives: int, batch: int, epochs: int,
    facts: Any, users: Any, keys: Any, sent: Any, total: Any, loss: Any,
) -> None:  # fmt: skip
    """The round of one thread's share of `users`: the first and `every` so many after it. Private weights and rows step
    in place, changes of shared rows are summed into `total` [M, d]. Own rows lie as in `cohort.store`, with room for
    all that a device will touch; without `keeps` there are none, and d is 0. `mix`: see `kernels.plgc`, or None."""
    shared, start, store, keeps, weights, biases = tables
    n_items = len(start)
    slot_of, open_items, ids, positive, items, slots, c, d, b, more = room
    for index in range(first, len(users), every):
        user = users[index]
        positives = histories.train[histories.ptr[user] : histories.ptr[user + 1]]
        closed = histories.gaps[histories.closed_ptr[user] : histories.closed_ptr[user + 1]]
        count = draw(positives, closed, n_items, keys[index], negatives, items, open_items)
        stride = count // len(positives)
        rows = 0
        for sample in range(count):
            item = items[sample]
            slot = slot_of[item]
            if slot < 0:
                slot = rows
                rows += 1
                slot_of[item], ids[slot], positive[slot] = slot, item, sample % stride == 0
                c[slot] = shared[item]
                if keeps:
                    d[slot] = start[item]
            slots[sample] = slot
        if keeps:
            recall(store, user, slot_of, d)
        b[0] = biases[user]
        begin(mix, user, c[:rows])
        own = (c[:rows], d[:rows], mix, weights[user], b)
        _device(*own, slots[:count], positive, keys[index], batch, epochs, facts, loss, more)
        end(mix, user)
        biases[user] = b[0]
        send(ids, c[:rows], shared, total, sent[index])
        if keeps:
            keep(store, user, slot_of, ids, d[:rows])
        else:
            for slot in range(rows):
                slot_of[ids[slot]] = -1


@kernel
def additive_scores(first: int, every: int, tables: Any, users: Any, ask: Any, scores: Any) -> None:
    """Scores of the items `ask` [users, K] with the server's rows and each device's own; one thread's share."""
    shared, start, store, keeps, weights, biases = tables
    n_items, dim = start.shape
    held, pages, page_ids, page_rows = store
    page = page_ids.shape[1]
    place_of = np.full(n_items, -1, np.int32)
    for index in range(first, len(users), every):
        user = users[index]
        w = weights[user]
        if keeps:
            for k in range(held[user]):
                place_of[page_ids[pages[user, k // page], k % page]] = k
        for place in range(ask.shape[1]):
            item = ask[index, place]
            value, k = biases[user], place_of[item]
            for j in range(dim):
                value += w[j] * shared[item, j]
            if keeps:
                row = page_rows[pages[user, k // page], k % page] if k >= 0 else start[item]
                for j in range(dim):
                    value += w[j] * row[j]
            scores[index, place] = value
        if keeps:
            for k in range(held[user]):
                place_of[page_ids[pages[user, k // page], k % page]] = -1
