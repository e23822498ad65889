"""The fused round of methods with a linear score, sigma(w_i . v_ij + b_i): PFedRec, FedMF and FedRecon, with or without
dual personalisation, sharpness-aware steps, PLGC and noise on what is sent; and PFedRec on each device alone. One
device at a time per thread, its rows in cache from drawing to sending. The bias b is kept as the last value of w.

Numbers are copied out of arrays before an inner loop writes to another array: only then may the compiler assume that
they stay as they are, and use the machine's wide registers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from federec.kernels.cpu import DIGIT, draw, exp, jit, kernel, laplace, send, shuffled
from federec.kernels.pages import keep, recall
from federec.kernels.plgc import begin, blend, end, step_mixed

_STILL = np.float32(0.0)
_FACTORS = 1000  # of at most 2 each, whose product a float64 holds


class Plan(NamedTuple):
    """How a device learns in the round and what it sends; the same for all."""

    negatives: int
    batch: int
    epochs: int
    rate: np.float32
    """Step of w and b."""
    item_rate: np.float32
    """Step of v."""
    rho: np.float32
    """How far w and b are moved uphill before their gradient is taken; 0: not at all."""
    item_rho: np.float32
    """The same of v."""
    laplace: np.float32
    """Scale of the noise on what is sent."""
    bias: bool
    """There is a b."""
    alternate: bool
    """v steps after w, with the new w."""
    passes: int
    """w is rebuilt from 0 in so many passes over the first half of the samples, then v steps; 0: w goes on."""
    disjoint: bool
    """With passes: v steps on the second half of the samples alone."""
    own: bool
    """v is private: kept in the store, not sent."""


class Room(NamedTuple):
    """Where a thread keeps the device at hand."""

    slot_of: Any
    """[n_items] an item's row in the table, -1 where the device has none."""
    open_items: Any
    ids: Any
    table: Any
    """Item and values of each row."""
    drawn: Any
    """Samples as drawn, first items, then rows of the table."""
    sorting: tuple[Any, ...]
    slots: Any
    sides: Any
    """Row of each sample, and its side: -1 for a positive, 1 for a negative; shuffled."""
    w: Any
    uphill: Any
    gradient: Any
    z: Any
    error: Any
    pulls: Any
    """[rows] what a batch does to each row, zero between uses."""


def linear_room(n_items: int, samples: int, dim: int, batch: int) -> Room:
    """Room for any device with at most so many samples."""
    rows = min(samples, n_items)
    return Room(
        np.full(n_items, -1, np.int32),
        np.empty(n_items, np.int32),
        np.empty(rows + 1, np.int32),
        np.empty((rows, dim), np.float32),
        np.empty(samples, np.int32),
        (*(np.empty(samples, np.int32) for _ in range(4)), np.empty(1 << DIGIT, np.int32)),
        np.empty(samples, np.int32),
        np.empty(samples, np.float32),
        np.empty(dim + 1, np.float32),
        np.empty(dim + 1, np.float32),
        np.empty(dim + 1, np.float32),
        np.empty(batch, np.float32),
        np.empty(batch, np.float32),
        np.zeros(rows, np.float32),
    )


@jit
def _dot(w: Any, rows: Any, row: int) -> Any:
    z = w[len(w) - 1]
    for k in range(len(w) - 1):
        z += w[k] * rows[row, k]
    return z


@jit
def _logits(table: Any, slots: Any, w: Any, out: Any) -> None:
    for i in range(len(slots)):
        out[i] = _dot(w, table, slots[i])


@jit
def _errors(z: Any, sides: Any, out: Any) -> Any:
    """(sigma(z) - y) / n into `out`; returns the mean cross-entropy."""
    total = 0.0
    for first in range(0, len(z), _FACTORS):
        part = slice(first, first + _FACTORS)
        total += _miss(z[part], sides[part], np.float32(1.0 / len(z)), out[part])
    return total / len(z)


@jit
def _miss(z: Any, sides: Any, share: Any, out: Any) -> Any:
    """A share of sigma(z) - y into `out`; returns the sum of cross-entropies. With side s = 1 - 2 y the error is
    s sigma(s z), the cross-entropy max(s z, 0) + log(1 + exp(-|s z|)); the factors 1 + exp share one logarithm."""
    one, none, over, product = np.float32(1.0), np.float32(0.0), np.float32(0.0), 1.0
    for i in range(len(z)):
        wrong = sides[i] * z[i]
        ratio = exp(-abs(wrong))
        large = one / (one + ratio)
        out[i] = sides[i] * (large if wrong > 0 else ratio * large) * share
        over += max(wrong, none)
        product *= np.float64(one + ratio)
    return over + math.log(product)


@jit
def _pull(table: Any, slots: Any, error: Any, bias: bool, gradient: Any) -> None:
    """The gradient of w and b: four samples at a time, which saves three of four loads and stores of it."""
    dim, n, total = table.shape[1], len(slots), np.float32(0.0)
    gradient.fill(0)
    for i in range(0, n - 3, 4):
        a, b, c, d = slots[i], slots[i + 1], slots[i + 2], slots[i + 3]
        p, q, r, s = error[i], error[i + 1], error[i + 2], error[i + 3]
        total += p + q + r + s
        for k in range(dim):
            gradient[k] += p * table[a, k] + q * table[b, k] + r * table[c, k] + s * table[d, k]
    for i in range(n - n % 4, n):
        row, scale = slots[i], error[i]
        total += scale
        for k in range(dim):
            gradient[k] += scale * table[row, k]
    if bias:
        gradient[dim] = total


@jit
def _push(table: Any, slots: Any, error: Any, rate: Any, w: Any) -> None:
    """Rows step along w; one that the batch holds twice moves by both errors."""
    for i in range(len(slots)):
        row, scale = slots[i], rate * error[i]
        for k in range(table.shape[1]):
            table[row, k] -= scale * w[k]


@jit
def _climb(w: Any, gradient: Any, rho: Any, out: Any) -> None:
    """w moved uphill: w + rho g / |g|."""
    norm = np.float32(0.0)
    for k in range(len(w)):
        norm += gradient[k] * gradient[k]
    scale = rho / max(np.float32(math.sqrt(norm)), np.float32(1e-12))
    for k in range(len(w)):
        out[k] = w[k] + scale * gradient[k]


@jit
def _climb_rows(slots: Any, error: Any, rho: Any, w: Any, pulls: Any, z: Any) -> None:
    """Logits of rows moved uphill. The gradient of row r is E_r w, with E_r the sum of its samples' errors, so it
    moves by rho E_r w / (|w| |E|), and its logits by rho E_r |w| / |E|."""
    size = np.float32(0.0)
    for k in range(len(w) - 1):
        size += w[k] * w[k]
    for i in range(len(slots)):
        pulls[slots[i]] += error[i]
    total = np.float32(0.0)
    for i in range(len(slots)):
        total += error[i] * pulls[slots[i]]  # E_r^2, in shares
    scale = rho * size / max(np.float32(math.sqrt(size * total)), np.float32(1e-12))
    for i in range(len(slots)):
        z[i] += scale * pulls[slots[i]]
    for i in range(len(slots)):
        pulls[slots[i]] = 0


@jit
def _learn(room: Any, mix: Any, start: int, stop: int, plan: Any, rate: Any, item_rate: Any, loss: Any) -> None:
    """One batch: w and b, and the rows, step down the gradient at their current values by these rates; 0: they stay."""
    table, w, gradient = room.table, room.w, room.gradient
    slots, sides = room.slots[start:stop], room.sides[start:stop]
    if mix is not None:
        step_mixed(mix, table, slots, sides, w, gradient, plan.bias, rate, item_rate, loss)
        return
    z, error = room.z[: stop - start], room.error[: stop - start]
    if rate > 0 and plan.rho > 0:
        _logits(table, slots, w, z)
        _errors(z, sides, error)
        _pull(table, slots, error, plan.bias, gradient)
        _climb(w, gradient, plan.rho, room.uphill)
        _logits(table, slots, room.uphill, z)
        _errors(z, sides, error)
        _pull(table, slots, error, plan.bias, gradient)
    _logits(table, slots, w, z)
    loss[0] += _errors(z, sides, error)
    loss[1] += 1
    if rate > 0 and not plan.rho > 0:
        _pull(table, slots, error, plan.bias, gradient)
    if item_rate > 0:
        if plan.item_rho > 0:
            _climb_rows(slots, error, plan.item_rho, w, room.pulls, z)
            _errors(z, sides, error)
        _push(table, slots, error, item_rate, w)
    if rate > 0:
        for k in range(len(w)):
            w[k] -= rate * gradient[k]


@jit
def _pass(room: Any, mix: Any, start: int, stop: int, plan: Any, rate: Any, item_rate: Any, loss: Any) -> None:
    """The batches of these samples in turn; where w and rows alternate, each of them twice."""
    times = 2 if plan.alternate and rate > 0 and item_rate > 0 else 1
    for first in range(start, stop, plan.batch):
        for time in range(times):
            own, items = rate if time == 0 else _STILL, item_rate if time == times - 1 else _STILL
            _learn(room, mix, first, min(stop, first + plan.batch), plan, own, items, loss)


@jit
def _shuffle(room: Any, key: Any, epoch: int, count: int) -> None:
    """Rows and sides of the samples in an epoch's order."""
    order, drawn, slots, sides = room.sorting[0], room.drawn, room.slots, room.sides
    shuffled(key, epoch, count, *room.sorting)
    for sample in range(count):
        slot = drawn[order[sample]]
        slots[sample] = ~slot if slot < 0 else slot
        sides[sample] = -1 if slot < 0 else 1


@jit
def _fit(room: Any, mix: Any, key: Any, count: int, plan: Any, loss: Any) -> None:
    """A device's local learning: in each epoch a pass over its samples, shuffled anew. Where w is rebuilt (FedRecon)
    they are shuffled once: first w steps from nothing, rows frozen; then the rows, w frozen."""
    half = (count + 1) // 2
    if plan.passes:
        room.w.fill(0)
    for turn in range(plan.passes + plan.epochs):
        start, stop, rate, item_rate = 0, count, plan.rate, plan.item_rate
        if turn < plan.passes:
            stop, item_rate = half, _STILL
        elif plan.passes:
            start, rate = half if plan.disjoint else 0, _STILL
        if turn == 0 or not plan.passes:
            _shuffle(room, key, turn, count)
        _pass(room, mix, start, stop, plan, rate, item_rate, loss)


@jit
def _with_bias(weights: Any, user: int, out: Any) -> Any:
    """A device's w with its b as the last value."""
    vectors, biases = weights
    for k in range(len(out) - 1):
        out[k] = vectors[user, k]
    out[len(out) - 1] = biases[user]
    return out


@jit
def _keep(w: Any, weights: Any, user: int) -> None:
    """The device's w and b for the next round."""
    vectors, biases = weights
    for k in range(len(w) - 1):
        vectors[user, k] = w[k]
    biases[user] = w[len(w) - 1]


@jit
def _fetch(room: Any, count: int, stride: int, shared: Any) -> Any:
    """The rows of the items drawn, in that order; returns how many. Every stride-th sample drawn is a positive, and
    has the complement of its row. No guess is made whether an item is new: half of the guesses would be wrong."""
    slot_of, ids, table, drawn = room.slot_of, room.ids, room.table, room.drawn
    held = np.int32(0)
    for sample in range(count):
        item = drawn[sample]
        slot = slot_of[item]
        new = slot < 0
        ids[held] = item
        slot = held if new else slot
        slot_of[item] = slot
        drawn[sample] = slot
        held += np.int32(new)
    for sample in range(0, count, stride):
        drawn[sample] = ~drawn[sample]
    for row in range(held):
        item = ids[row]
        for k in range(table.shape[1]):
            table[row, k] = shared[item, k]
    return held


@jit
def _score(room: Any, shared: Any, w: Any, items: Any, out: Any) -> None:
    """Scores with the device's rows; the server's, where it has none."""
    slot_of, table = room.slot_of, room.table
    for place in range(len(items)):
        item = items[place]
        row = slot_of[item]
        out[place] = _dot(w, table, row) if row >= 0 else _dot(w, shared, item)


@jit
def _forget(room: Any, held: int) -> None:
    """Make room for the next device."""
    for row in range(held):
        room.slot_of[room.ids[row]] = -1


@kernel
def linear_round(
    first: int, every: int, plan: Any, room: Any, mix: Any, histories: Any, quantiles: Any, shared: Any, store: Any,
    weights: Any, users: Any, keys: Any, ask: Any, judges: Any, scores: Any, sent: Any, total: Any, loss: Any,
) -> None:  # fmt: skip
    """The round of one thread's share of `users`: the first and `every` so many after it. Private weights (w and b of
    all devices) step in place, changes of rows are summed into `total` [M, d], the items `ask` [users, K] are scored
    with each device's own rows, by the weights `judges` [users, d + 1] or, where that is empty, its own. Where rows are
    private, `shared` is the table that all began with, they step in the `store` and nothing is scored or sent.
    `mix`: see `kernels.plgc`; None: nothing is mixed. With it, judges have a beside their weights."""
    n_items, dim = shared.shape
    for index in range(first, len(users), every):
        user, key = users[index], keys[index]
        positives = histories.train[histories.ptr[user] : histories.ptr[user + 1]]
        gaps = histories.gaps[histories.closed_ptr[user] : histories.closed_ptr[user + 1]]
        count = draw(positives, gaps, n_items, key, plan.negatives, room.drawn, room.open_items)
        held = _fetch(room, count, count // len(positives), shared)
        if plan.own:
            recall(store, user, room.slot_of, room.table)
        w = _with_bias(weights, user, room.w)
        begin(mix, user, room.table[:held])
        _fit(room, mix, key, count, plan, loss)
        _keep(w, weights, user)
        end(mix, user)
        if plan.own:
            keep(store, user, room.slot_of, room.ids, room.table[:held])
            continue
        judge = judges[index, : dim + 1] if len(judges) else w
        _score(room, shared, judge, ask[index], scores[index])
        if mix is not None:
            blend(scores[index], judge, shared, ask[index], judges[index, dim + 1] if len(judges) else mix.state[1])
        if plan.laplace > 0:
            laplace(room.table[:held], room.ids, key, plan.laplace, quantiles)
        send(room.ids, room.table[:held], shared, total, sent[index])
        _forget(room, held)


@kernel
def linear_scores(first: int, every: int, shared: Any, weights: Any, users: Any, ask: Any, scores: Any) -> None:
    """Scores of the items `ask` [users, K] with the server's rows; one thread's share."""
    w = np.empty(shared.shape[1] + 1, np.float32)
    for index in range(first, len(users), every):
        _with_bias(weights, users[index], w)
        _logits(shared, ask[index], w, scores[index])
