"""The fused round of methods with a linear score, sigma(w_i . v_ij + b_i): PFedRec, FedMF and FedRecon, with or without
dual personalisation, sharpness-aware steps, PLGC and noise on what is sent; and PFedRec without a server. One device at
a time per thread, its rows in cache from drawing to sending. The bias b is kept as the last value of w.

Numbers are copied out of arrays before an inner loop writes to another array: only then may the compiler assume that
they stay as they are, and use the machine's wide registers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from federec.kernels.compiling import jit, kernel
from federec.kernels.cpu import (
    Samples,
    draw_rows,
    emphasise,
    exp,
    floats,
    laplace,
    log1p,
    look_up,
    make_samples,
    merge,
    release,
    send,
    shuffled,
    sigmoid,
)
from federec.kernels.lanes import LINE, minus, read, times, write
from federec.kernels.machine import count_on
from federec.kernels.pages import Kept, Pages, keep, make_kept, recall
from federec.kernels.plgc import begin, blend, end, step_mixed
from federec.kernels.ranks import rank_lists

_STILL = np.float32(0.0)
_FACTORS = 1000  # of at most 2 each, whose product a float64 holds


class Plan(NamedTuple):
    """How a device learns in the round; the same for all."""

    negatives: int
    batch: int
    epochs: int
    rate: np.float32
    """Step of w and b."""
    item_rate: np.float32
    """Step of v."""
    rho: np.float32
    """How far w and b are moved uphill before their gradient is taken; 0 means not at all."""
    item_rho: np.float32
    """The same of v."""
    bias: bool
    """There is a b."""
    alternate: bool
    """v steps after w, with the new w."""
    passes: int
    """Passes over the first half of the samples that rebuild w from 0, before v steps; 0 means that w is kept."""
    disjoint: bool
    """With passes: v steps only on the second half of the samples."""
    own: bool
    """v is private: kept in the store, not sent."""


class Tables(NamedTuple):
    """What is read and written of a state."""

    rows: Any
    """[M, dim] the server's item rows; where they are private, those that all devices began the run with."""
    store: Pages
    """Private item rows."""
    weights: Any
    biases: Any
    """w [N, dim] and b [N] of all devices."""


class Workspace(NamedTuple):
    """Where a thread keeps the device at hand."""

    samples: Samples
    kept: Kept
    table: Any
    """[rows, dim]"""
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


def linear_workspace(n_items: int, most: int, dim: int, batch: int) -> Workspace:
    """For any device with at most `most` samples."""
    rows = min(most, n_items)
    return Workspace(
        samples=make_samples(n_items, most),
        kept=make_kept(rows),
        table=floats(rows, dim),
        slots=np.empty(most, np.int32),
        sides=floats(most),
        w=floats(dim + 1),
        uphill=floats(dim + 1),
        gradient=floats(dim + 1),
        z=floats(batch),
        error=floats(batch),
        pulls=floats(rows),
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
def _errors(z: Any, sides: Any, emphasis: Any, slots: Any, out: Any) -> Any:
    """(sigma(z) - y) / n into `out`, times the emphasis on each sample's row if there is any; returns the mean
    cross-entropy."""
    if emphasis is not None:
        return _emphasised(z, sides, emphasis.of_row, slots, out)
    total = 0.0
    for first in range(0, len(z), _FACTORS):
        part = slice(first, first + _FACTORS)
        total += _cross_entropy(z[part], sides[part], np.float32(1.0 / len(z)), out[part])
    return total / len(z)


@jit
def _cross_entropy(z: Any, sides: Any, weight: Any, out: Any) -> Any:
    """weight (sigma(z) - y) into `out`; returns the sum of cross-entropies. With side s = 1 - 2 y the error is
    s sigma(s z), the cross-entropy max(s z, 0) + log(1 + exp(-|s z|)); the factors 1 + exp share one logarithm."""
    one, none, over, product = np.float32(1.0), np.float32(0.0), np.float32(0.0), 1.0
    for i in range(len(z)):
        wrong = sides[i] * z[i]
        ratio = exp(-abs(wrong))
        out[i] = sides[i] * sigmoid(wrong, ratio) * weight
        over += max(wrong, none)
        product *= np.float64(one + ratio)
    return over + math.log(product)


@jit
def _emphasised(z: Any, sides: Any, of_row: Any, slots: Any, out: Any) -> Any:
    """`_errors` of samples with unlike weights."""
    total, none, share = 0.0, np.float32(0.0), np.float32(1.0 / len(z))
    for i in range(len(z)):
        out[i] = of_row[slots[i]]
    for i in range(len(z)):
        wrong, weight = sides[i] * z[i], out[i]
        ratio = exp(-abs(wrong))
        out[i] = sides[i] * sigmoid(wrong, ratio) * weight * share
        total += weight * (max(wrong, none) + log1p(ratio))
    return total / len(z)


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
    dim, along = table.shape[1], w.reshape(1, len(w))
    whole = dim - dim % LINE
    for i in range(len(slots)):
        row, scale = slots[i], rate * error[i]
        for k in range(0, whole, LINE):
            write(table, row, k, minus(read(table, row, k), times(read(along, 0, k), scale)))
        for k in range(whole, dim):
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
def _learn(
    workspace: Any, mix: Any, emphasis: Any, start: int, stop: int, plan: Any, rate: Any, item_rate: Any, loss: Any
) -> None:
    """One batch: w and b, and the rows, step down the gradient at their current values by these rates; 0: they stay."""
    table, w, gradient = workspace.table, workspace.w, workspace.gradient
    slots, sides = workspace.slots[start:stop], workspace.sides[start:stop]
    if mix is not None:
        step_mixed(mix, table, slots, sides, w, gradient, plan.bias, rate, item_rate, loss)
        return
    z, error = workspace.z[: stop - start], workspace.error[: stop - start]
    if rate > 0 and plan.rho > 0:
        _logits(table, slots, w, z)
        _errors(z, sides, emphasis, slots, error)
        _pull(table, slots, error, plan.bias, gradient)
        _climb(w, gradient, plan.rho, workspace.uphill)
        _logits(table, slots, workspace.uphill, z)
        _errors(z, sides, emphasis, slots, error)
        _pull(table, slots, error, plan.bias, gradient)
    _logits(table, slots, w, z)
    loss[0] += _errors(z, sides, emphasis, slots, error)
    loss[1] += 1
    if rate > 0 and not plan.rho > 0:
        _pull(table, slots, error, plan.bias, gradient)
    if item_rate > 0:
        if plan.item_rho > 0:
            _climb_rows(slots, error, plan.item_rho, w, workspace.pulls, z)
            _errors(z, sides, emphasis, slots, error)
        _push(table, slots, error, item_rate, w)
    if rate > 0:
        for k in range(len(w)):
            w[k] -= rate * gradient[k]


@jit
def _pass(
    workspace: Any, mix: Any, emphasis: Any, start: int, stop: int, plan: Any, rate: Any, item_rate: Any, loss: Any
) -> None:
    """The batches of these samples in turn; where w and rows alternate, each of them twice."""
    times = 2 if plan.alternate and rate > 0 and item_rate > 0 else 1
    for first in range(start, stop, plan.batch):
        for time in range(times):
            own, items = rate if time == 0 else _STILL, item_rate if time == times - 1 else _STILL
            _learn(workspace, mix, emphasis, first, min(stop, first + plan.batch), plan, own, items, loss)


@jit
def _shuffle(workspace: Any, key: Any, epoch: int, count: int) -> None:
    """Rows and sides of the samples in an epoch's order."""
    sorting, drawn = workspace.samples.sorting, workspace.samples.drawn
    order, slots, sides = sorting.order, workspace.slots, workspace.sides
    shuffled(key, epoch, count, sorting)
    for sample in range(count):
        slot = drawn[order[sample]]
        slots[sample] = ~slot if slot < 0 else slot
        sides[sample] = -1 if slot < 0 else 1


@jit
def _fit(workspace: Any, mix: Any, emphasis: Any, key: Any, count: int, plan: Any, loss: Any) -> None:
    """A device's local learning: in each epoch a pass over its samples, shuffled anew. Where w is rebuilt (FedRecon)
    they are shuffled once: first w steps from 0, rows frozen; then the rows, w frozen."""
    half = (count + 1) // 2
    if plan.passes:
        workspace.w.fill(0)
    for turn in range(plan.passes + plan.epochs):
        start, stop, rate, item_rate = 0, count, plan.rate, plan.item_rate
        if turn < plan.passes:
            stop, item_rate = half, _STILL
        elif plan.passes:
            start, rate = half if plan.disjoint else 0, _STILL
        if turn == 0 or not plan.passes:
            _shuffle(workspace, key, turn, count)
        _pass(workspace, mix, emphasis, start, stop, plan, rate, item_rate, loss)


@jit
def _with_bias(weights: Any, biases: Any, user: int, out: Any) -> Any:
    """A device's w with its b as the last value."""
    for k in range(len(out) - 1):
        out[k] = weights[user, k]
    out[len(out) - 1] = biases[user]
    return out


@jit
def _keep(w: Any, weights: Any, biases: Any, user: int) -> None:
    """The device's w and b for the next round."""
    for k in range(len(w) - 1):
        weights[user, k] = w[k]
    biases[user] = w[len(w) - 1]


@jit
def _mark_positives(drawn: Any, stride: int) -> None:
    """The sample of a positive, every stride-th, holds the complement of its row."""
    for sample in range(0, len(drawn), stride):
        drawn[sample] = ~drawn[sample]


@jit
def _score(slot_of: Any, table: Any, shared: Any, w: Any, items: Any, out: Any) -> None:
    """Scores with the device's rows; with the server's where it has none."""
    for place in range(len(items)):
        item = items[place]
        row = slot_of[item]
        out[place] = _dot(w, table, row) if row >= 0 else _dot(w, shared, item)


@kernel
def linear_round(
    parts: Any, plan: Any, noise: Any, workspace: Any, mix: Any, emphasis: Any, histories: Any, tables: Any,
    players: Any, out: Any,
) -> None:  # fmt: skip
    """The round of one thread's users. Their w and b step in place, the changes of their rows are added up, and items
    are scored and ranked with each device's own rows, by its own weights or those of a judge. Private rows step in the
    store; then nothing is scored or sent. `mix`: see `kernels.plgc`; None: nothing is mixed. `emphasis`: None where all
    samples weigh the same."""
    samples, shared, judges = workspace.samples, tables.rows, players.judges
    dim = shared.shape[1]
    part = count_on(parts.next)
    while part < len(parts.ptr) - 1:
        for index in range(parts.ptr[part], parts.ptr[part + 1]):
            user, key = players.users[index], players.keys[index]
            held, count, stride = draw_rows(samples, histories, user, key, plan.negatives)
            ids, table = samples.ids[:held], workspace.table[:held]
            _mark_positives(samples.drawn[:count], stride)
            look_up(shared, ids, table)
            if plan.own:
                found = recall(tables.store, user, samples.slot_of, workspace.kept, table)
            w = _with_bias(tables.weights, tables.biases, user, workspace.w)
            begin(mix, user, table)
            emphasise(emphasis, user, samples.slot_of, held)
            _fit(workspace, mix, emphasis, key, count, plan, out.loss[part])
            _keep(w, tables.weights, tables.biases, user)
            end(mix, user)
            if plan.own:
                keep(tables.store, user, samples.slot_of, ids, workspace.kept, found, table)
                continue
            place = players.places[index]
            ask, scores = players.ask[place], out.scores[place]
            judge = judges[place, : dim + 1] if len(judges) else w
            _score(samples.slot_of, table, shared, judge, ask, scores)
            if mix is not None:
                blend(scores, judge, shared, ask, judges[place, dim + 1] if len(judges) else mix.state[1])
            rank_lists(scores, out.ranks[place])
            if noise.scale > 0:
                laplace(table, ids, key, 0, noise)
            send(ids, table, shared, out.total[part], out.sent[index])
            release(samples, held)
        merge(parts.ended, part, out)
        part = count_on(parts.next)


@kernel
def linear_scores(parts: Any, w: Any, tables: Any, request: Any) -> None:
    """Scores with the server's rows, of one thread's users. `w` [dim + 1]: memory for what each scores with."""
    part = count_on(parts.next)
    while part < len(parts.ptr) - 1:
        for index in range(parts.ptr[part], parts.ptr[part + 1]):
            _with_bias(tables.weights, tables.biases, request.users[index], w)
            _logits(tables.rows, request.ask[index], w, request.scores[index])
        part = count_on(parts.next)
