"""The fused round of methods whose score is a network (`kernels.network`): private p and q, shared rows and layers. One
device at a time per thread, in its steps without padding: an item that was drawn several times is one row, with the
weights of all its samples."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from federec.kernels.cpu import DIGIT, draw, floats, jit, kernel, send, shuffled
from federec.kernels.network import Batch, Net, Shape, Tile, copy, gradient_of, make_net, make_tile, square, turn
from federec.kernels.patterns import make_patterns

_PATTERNS = 1 << 12  # that are kept before they are added up
_STILL, _OFF = np.float32(0.0), np.float32(1e-12)
_YES, _NO = np.bool_(True), np.bool_(False)  # typed: a plain True would have functions compiled for it alone


class Plan(NamedTuple):
    """How a device learns in the round and what it sends; the same for all."""

    negatives: int
    batch: int
    epochs: int
    moves: bool
    """Rows and layers step after each batch, and their changes are sent. Otherwise there is one step a pass, on the sum
    of the batches' losses; rows and layers stay, their gradients are added up and sent, and p and q step by Adam."""
    rate: np.float32
    """Step of p and q."""
    item_rate: np.float32
    """Step of rows, if they move."""
    layer_rate: np.float32
    """Step of layers, if they move."""
    rho_shared: np.float32
    """How far rows and layers are moved uphill before their gradient is taken; 0: not at all."""
    rho_private: np.float32
    """The same of p and q."""
    beta1: np.float32
    beta2: np.float32
    eps: np.float32
    """Of Adam."""


class Samples(NamedTuple):
    """A device's samples, and a row for each of its items."""

    slot_of: Any
    """[n_items] an item's row, -1 where the device has none."""
    open_items: Any
    ids: Any
    sides: Any
    """Item of each row, and its side: -1 for a positive, 1 for a negative."""
    drawn: Any
    slots: Any
    """Row of each sample as drawn, and shuffled."""
    sorting: tuple[Any, ...]
    seen: Any
    """[rows] -1 between uses."""


class Room(NamedTuple):
    """Where a thread keeps the device at hand."""

    samples: Samples
    batch: Batch
    tile: Tile
    table: Any
    """[rows, product + dim] the device's rows if they move, else their gradients added up."""
    outbox: Any
    """What it sends of layers."""
    net: Net
    uphill: Net
    gradient: Net
    user: Any
    user_uphill: Any
    user_gradient: Any
    """[p, q]"""


def make_room(n_items: int, samples: int, step: int, shape: Shape, merge: bool) -> Room:
    """Room for any device with at most so many samples, `step` of which are learned from at a time; rows of a step
    `merge` in patterns."""
    held = min(samples, n_items)
    rows, width = min(step, held), shape.product + shape.dim
    nets, tile = [make_net(shape) for _ in range(3)], make_tile(shape)
    return Room(
        Samples(
            np.full(n_items, -1, np.int32),
            _integers(n_items),
            _integers(held),
            floats(held),
            _integers(samples),
            _integers(samples),
            (*(_integers(samples) for _ in range(4)), _integers(1 << DIGIT)),
            np.full(held, -1, np.int32),
        ),
        Batch(
            _integers(rows),
            _integers(rows),
            floats(rows),
            floats(rows),
            floats(rows, shape.product),
            floats(rows, shape.dim),
            make_patterns(min(rows, _PATTERNS), len(tile.error), (shape.dim, *shape.hidden[:-1]), shape.hidden, merge),
        ),
        tile,
        floats(held, width),
        np.zeros_like(nets[0].flat),
        *nets,
        *(floats(width) for _ in range(3)),
    )


def _integers(size: int) -> Any:
    return np.zeros(size, np.int32)


@jit
def _step(values: Any, gradient: Any, rate: Any) -> None:
    for k in range(len(values)):
        values[k] -= rate * gradient[k]


@jit
def _climb(values: Any, gradient: Any, scale: Any, out: Any) -> None:
    for k in range(len(values)):
        out[k] = values[k] + scale * gradient[k]


@jit
def _sharp_gradient(
    room: Any, count: int, table: Any, places: Any, rho_shared: Any, rho_private: Any, known: Any
) -> Any:
    """The gradient that a step goes along: of each group taken where that group, and nothing else, is moved uphill
    (`mathematics.sharpness`); returns the loss where nothing is moved."""
    tile, batch, net, gradient = room.tile, room.batch, room.net, room.gradient
    user, slope = room.user, room.user_gradient
    loss = gradient_of(tile, batch, count, table, places, net, user, _STILL, known, _YES, gradient, _YES, slope)
    squares = square(gradient.flat) + square(batch.v[:count].ravel()) + square(batch.x[:count].ravel())
    scale = rho_shared / max(np.float32(math.sqrt(squares)), _OFF)
    if rho_private > 0:
        _climb(user, slope, rho_private / max(np.float32(math.sqrt(square(slope))), _OFF), room.user_uphill)
        gradient_of(tile, batch, count, table, places, net, room.user_uphill, _STILL, known, _NO, gradient, _YES, slope)
    if rho_shared > 0:
        _climb(net.flat, gradient.flat, scale, room.uphill.flat)
        turn(room.uphill)
        gradient_of(tile, batch, count, table, places, room.uphill, user, scale, known[:0], _YES, gradient, _NO, slope)
    return loss


@jit
def _adam(value: Any, gradient: Any, m: Any, v: Any, t: Any, plan: Any) -> None:
    """One step of Adam, as `cohort.optim` takes it; t is its number."""
    one, rate, eps = np.float32(1.0), plan.rate, plan.eps
    keep_m, keep_v = plan.beta1, plan.beta2
    unbias_m, unbias_v = one / (one - keep_m**t), one / (one - keep_v**t)
    for k in range(len(value)):
        g = gradient[k]
        m[k] = keep_m * m[k] + (one - keep_m) * g
        v[k] = keep_v * v[k] + (one - keep_v) * g * g
        value[k] -= rate * m[k] * unbias_m / (np.float32(math.sqrt(v[k] * unbias_v)) + eps)


@jit
def _collect(samples: Any, start: int, stop: int, size: int, batch: Any) -> int:
    """The distinct rows of samples start .. stop; each weighs one over the size of the batch of `size` that it is in.
    Returns how many rows there are."""
    slots, seen, rows, weight = samples.slots, samples.seen, batch.rows, batch.weight
    distinct = 0
    for begin in range(start, stop, size):
        end = min(stop, begin + size)
        share = np.float32(1.0) / np.float32(end - begin)
        for sample in range(begin, end):
            row = slots[sample]
            if seen[row] < 0:
                seen[row] = distinct
                rows[distinct], weight[distinct] = row, 0
                batch.items[distinct], batch.sides[distinct] = samples.ids[row], samples.sides[row]
                distinct += 1
            weight[seen[row]] += share
    for i in range(distinct):
        seen[rows[i]] = -1
    return distinct


@jit
def _step_rows(table: Any, rows: Any, v: Any, x: Any, rate: Any) -> None:
    product = v.shape[1]
    for i in range(len(rows)):
        row, rest = table[rows[i]], table[rows[i], product:]
        for k in range(product):
            row[k] -= rate * v[i, k]
        for k in range(x.shape[1]):
            rest[k] -= rate * x[i, k]


@jit
def _learn(room: Any, start: int, stop: int, plan: Any, shared: Any, known: Any, m: Any, v: Any, t: Any) -> Any:
    """One step on samples start .. stop; returns the loss."""
    batch, gradient = room.batch, room.gradient
    count = _collect(room.samples, start, stop, plan.batch, batch)
    rows = batch.rows[:count]
    table, places = (room.table, rows) if plan.moves else (shared, batch.items[:count])
    loss = _sharp_gradient(room, count, table, places, plan.rho_shared, plan.rho_private, known)
    if plan.moves:
        _step_rows(room.table, rows, batch.v, batch.x, plan.item_rate)
        _step(room.net.flat, gradient.flat, plan.layer_rate)
        turn(room.net)
        _step(room.user, room.user_gradient, plan.rate)
    else:
        _step_rows(room.table, rows, batch.v, batch.x, np.float32(-1.0))
        _step(room.outbox, gradient.flat, np.float32(-1.0))
        for k in range(len(t)):
            t[k] += 1
        _adam(room.user, room.user_gradient, m, v, t[0], plan)
    return loss


@jit
def _fetch(samples: Any, count: int, stride: int, shared: Any, moves: bool, table: Any) -> int:
    """A row for each item drawn, of which every stride-th is a positive; returns how many. It holds the server's
    values, or where these do not move 0."""
    slot_of, drawn = samples.slot_of, samples.drawn
    held = 0
    for sample in range(count):
        item = drawn[sample]
        if slot_of[item] < 0:
            slot_of[item], samples.ids[held] = held, item
            samples.sides[held] = -1 if sample % stride == 0 else 1
            for k in range(table.shape[1]):
                table[held, k] = shared[item, k] if moves else 0
            held += 1
        drawn[sample] = slot_of[item]
    return held


@jit
def _send_gradients(ids: Any, table: Any, total: Any, sent: Any) -> None:
    """As `send`, of rows that are what is sent."""
    for row in range(len(table)):
        item, filled = ids[row], 0
        for k in range(table.shape[1]):
            total[item, k] += table[row, k]
            filled += table[row, k] != 0
        sent[1] += filled > 0
        sent[2] += filled
    sent[0] = len(table)


@jit
def _send_layers(outbox: Any, ends: Any, total: Any, filled: Any) -> None:
    """Add what is sent of layers to the total; `filled` counts the values of each that are not 0."""
    start = 0
    for layer in range(len(ends)):
        count, values, sum_ = 0, outbox[start : ends[layer]], total[start : ends[layer]]
        for k in range(len(values)):
            sum_[k] += values[k]
            count += values[k] != 0
        filled[layer], start = count, ends[layer]


@kernel
def neural_round(
    first: int, every: int, plan: Any, histories: Any, shared: Any, layers: Any, known: Any, ends: Any,
    room: Any, users: Any, keys: Any, own: Any, sent: Any, total: Any, layer_total: Any, loss: Any,
) -> None:  # fmt: skip
    """The round of one thread's share of `users`: the first and `every` so many after it. Their private values `own` -
    [p, q] and Adam's moments m and v of each user, and its count of steps - step in place. What they send of rows and
    layers is summed."""
    samples, n_items = room.samples, len(shared)
    values, m, v, t = own
    for index in range(first, len(users), every):
        user, key = users[index], keys[index]
        positives = histories.train[histories.ptr[user] : histories.ptr[user + 1]]
        gaps = histories.gaps[histories.closed_ptr[user] : histories.closed_ptr[user + 1]]
        count = draw(positives, gaps, n_items, key, plan.negatives, samples.drawn, samples.open_items)
        held = _fetch(samples, count, count // len(positives), shared, plan.moves, room.table)
        copy(values[index], room.user)
        if plan.moves or index == first:  # else they are as they were
            copy(layers, room.net.flat)
            turn(room.net)
        room.outbox.fill(0)
        span = plan.batch if plan.moves else count
        for epoch in range(plan.epochs):
            shuffled(key, epoch, count, *samples.sorting)
            for sample in range(count):
                samples.slots[sample] = samples.drawn[samples.sorting[0][sample]]
            for start in range(0, count, span):
                stop = min(count, start + span)
                loss[0] += _learn(room, start, stop, plan, shared, known, m[index], v[index], t[index])
                loss[1] += 1
        copy(room.user, values[index])
        if plan.moves:
            _climb(room.net.flat, layers, np.float32(-1.0), room.outbox)
            send(samples.ids, room.table[:held], shared, total, sent[index])
        else:
            _send_gradients(samples.ids, room.table[:held], total, sent[index])
        _send_layers(room.outbox, ends, layer_total, sent[index, 3:])
        for row in range(held):
            samples.slot_of[samples.ids[row]] = -1
