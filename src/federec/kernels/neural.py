"""The fused round of methods whose score is a network (`kernels.network`): private p and q, shared rows, and layers
that are shared or, with dual personalisation, private. One device at a time per thread, in its steps without padding:
an item that was drawn several times is one row, with the weights of all its samples."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from federec.kernels.compiling import jit, kernel
from federec.kernels.cpu import (
    Samples,
    clear,
    collect,
    copy,
    draw_rows,
    emphasise,
    floats,
    integers,
    laplace,
    look_up,
    make_samples,
    merge,
    release,
    send,
    shuffled,
)
from federec.kernels.machine import count_on
from federec.kernels.network import (
    Batch,
    Net,
    Shape,
    Tile,
    gradient_of,
    load_layers,
    make_net,
    make_tile,
    offset_of,
    score_own,
    square,
    turn,
)
from federec.kernels.network_plgc import mix_rows, settle, weigh
from federec.kernels.patterns import Wanted, make_patterns
from federec.kernels.plgc import begin, end
from federec.kernels.reach import narrow_net, narrow_patterns, narrow_tile, pick, reach, spread

_PATTERNS = 1 << 12  # that are kept before they are added up
_ALONE = np.zeros(1, np.int32)  # the number of a table's only row
_STILL, _OFF = np.float32(0.0), np.float32(1e-12)
_YES, _NO = np.bool_(True), np.bool_(False)  # typed: a plain True would have functions compiled for it alone
_PRIVATE, _SHARED = 1, 2  # groups of parameters that are moved uphill


class Plan(NamedTuple):
    """How a device learns in the round and what it sends; the same for all."""

    negatives: int
    batch: int
    epochs: int
    moves: bool
    """Rows and layers step after each batch, and their changes are sent. Otherwise there is one step a pass, on the sum
    of the batches' losses; rows and layers stay, their gradients are added up and sent, and p and q step by Adam."""
    dual: bool
    """Layers are private: they step with p and q, and are not sent. Rows that move step after them, with the new ones.
    Items are scored with the device's own rows."""
    rate: np.float32
    """Step of p and q."""
    item_rate: np.float32
    """Step of rows, if they move."""
    layer_rate: np.float32
    """Step of layers, if they move or are private."""
    rho_shared: np.float32
    """How far what is shared is moved uphill before its gradient is taken; 0 means not at all."""
    rho_private: np.float32
    """The same of what is private."""
    beta1: np.float32
    beta2: np.float32
    eps: np.float32
    """Of Adam."""


class Server(NamedTuple):
    """What devices receive."""

    rows: Any
    """[M, product + dim]"""
    layers: Any
    """All layers, as one vector."""
    ends: Any
    """Where each layer ends in it."""
    known: Any
    """[M, width] x W_0 of all items, where neither rows nor layers move; else empty."""
    highest: Any
    """[width] the largest values of each unit in it; empty where it is."""
    longest: np.float32
    """The length of the longest x."""


class Own(NamedTuple):
    """What all users keep, which steps in place."""

    values: tuple[Any, ...]
    """p [N, product] and q [N, dim]."""
    m: tuple[Any, ...]
    v: tuple[Any, ...]
    t: tuple[Any, ...]
    """Adam's moments of them, and the number of its steps [N, 1]; without rows where they do not step by Adam."""
    layers: tuple[Any, ...]
    """[N, values] all users' layers where they are private; else without rows."""


class Workspace(NamedTuple):
    """Where a thread keeps the device at hand."""

    samples: Samples
    sides: Any
    """[rows] -1 for a positive, 1 for a negative."""
    slots: Any
    """Row of each sample, shuffled."""
    seen: Any
    """[rows] see `cpu.collect`."""
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


def neural_workspace(n_items: int, most: int, step: int, shape: Shape, merge: bool) -> Workspace:
    """For any device with at most `most` samples, `step` of which are learned from at a time; rows of a step `merge` in
    patterns."""
    held = min(most, n_items)
    rows, width = min(step, held), shape.product + shape.dim
    tile, net = make_tile(shape), make_net(shape)
    inputs = shape.dim, *shape.hidden[:-1]
    return Workspace(
        samples=make_samples(n_items, most),
        sides=floats(held),
        slots=integers(most),
        seen=np.full(held, -1, np.int32),
        batch=Batch(
            rows=integers(rows),
            items=integers(rows),
            sides=floats(rows),
            weight=floats(rows),
            v=floats(rows, shape.product),
            x=floats(rows, shape.dim),
            patterns=make_patterns(min(rows, _PATTERNS), len(tile.error), inputs, shape.hidden, merge),
        ),
        tile=tile,
        table=floats(held, width),
        outbox=np.zeros_like(net.flat),
        net=net,
        uphill=make_net(shape),
        gradient=make_net(shape),
        user=floats(width),
        user_uphill=floats(width),
        user_gradient=floats(width),
    )


@jit
def _step(values: Any, gradient: Any, rate: Any) -> None:
    for k in range(len(values)):
        values[k] -= rate * gradient[k]


@jit
def _climb(values: Any, gradient: Any, scale: Any, out: Any) -> None:
    for k in range(len(values)):
        out[k] = values[k] + scale * gradient[k]


@jit
def _gradients(
    workspace: Any, narrow: Any, count: int, table: Any, places: Any, plan: Any, server: Any, wanted: Any
) -> Any:  # fmt: skip
    """The gradients that a step goes along, into the workspace; returns the loss. With `narrow` they are taken without
    units that are out of reach."""
    tile, batch, net, uphill = workspace.tile, workspace.batch, workspace.net, workspace.uphill
    gradient, user, slope, known = workspace.gradient, workspace.user, workspace.user_gradient, server.known
    if narrow is None:
        return _climbing(
            tile, batch, count, table, places, net, uphill, user, workspace.user_uphill, plan, known, wanted, gradient,
            slope,
        )  # fmt: skip
    offset_of(net.user, net.biases[0], user, tile.offset)
    width = reach(narrow, net, tile.offset, server.highest, server.longest, plan)
    units, small, found = narrow.units[:width], narrow_net(narrow.net, width), narrow_net(narrow.gradient, width)
    pick(net, units, small)
    patterns = narrow_patterns(batch.patterns, width)
    some = Batch(batch.rows, batch.items, batch.sides, batch.weight, batch.v, batch.x, patterns)
    loss = _climbing(
        narrow_tile(tile, units), some, count, table, places, small, narrow_net(uphill, width), user,
        workspace.user_uphill, plan, known, wanted, found, slope,
    )  # fmt: skip
    if wanted.layers:
        spread(found, units, gradient)
    return loss


@jit
def _climbing(
    tile: Any, batch: Any, count: int, table: Any, places: Any, net: Any, net_uphill: Any, user: Any,
    user_uphill: Any, plan: Any, known: Any, wanted: Any, gradient: Any, slope: Any,
) -> Any:  # fmt: skip
    """The gradients that a step goes along: of each group taken where that group, and nothing else, is moved uphill
    (`mathematics.sharpness`); returns the loss where nothing is moved. One call of `gradient_of` in a loop, not three:
    it is long, and each call is compiled."""
    loss, scale_private, scale_shared = 0.0, _STILL, _STILL
    for group in range(3):
        at_net, at_user, scale, first, asked = net, user, _STILL, known, wanted
        if group == _PRIVATE:
            if not (plan.rho_private > 0 and wanted.user):
                continue
            asked = Wanted(_NO, plan.dual, _YES)
            _climb(user, slope, scale_private, user_uphill)
            at_user = user_uphill
        if group == _SHARED:
            if not (plan.rho_shared > 0 and wanted.rows):
                continue
            asked, scale, first = Wanted(_YES, not plan.dual, _NO), scale_shared, known[:0]
        if group > 0 and asked.layers:
            _climb(net.flat, gradient.flat, scale_private if plan.dual else scale_shared, net_uphill.flat)
            turn(net_uphill)
            at_net = net_uphill
        found = gradient_of(
            tile, batch, count, table, places, at_net, at_user, scale, first, asked, group == 0, gradient, slope
        )
        if group == 0:
            loss = found
        if group == 0 and (plan.rho_private > 0 or plan.rho_shared > 0):
            layers = square(gradient.flat)
            rows = square(batch.v[:count].reshape(-1)) + square(batch.x[:count].reshape(-1))
            scale_private = _length(plan.rho_private, square(slope) + (layers if plan.dual else _STILL))
            scale_shared = _length(plan.rho_shared, rows + (_STILL if plan.dual else layers))
    return loss


@jit
def _length(rho: Any, squares: Any) -> Any:
    """What makes a gradient with so large a sum of squares rho long."""
    return rho / max(np.float32(math.sqrt(squares)), _OFF)


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
def _collect(slots: Any, size: int, seen: Any, rows: Any, weight: Any) -> int:
    """The distinct rows of a step's samples; each weighs one over the size of the batch of `size` that it is in.
    Returns the number of rows."""
    count = 0
    for start in range(0, len(slots), size):
        batch = slots[start : start + size]
        count = collect(batch, np.float32(1.0) / np.float32(len(batch)), count, seen, rows, weight)
    clear(seen, rows[:count])
    return count


@jit
def _emphasise(emphasis: Any, rows: Any, weight: Any) -> None:
    """Multiply the weights of a step's rows by the emphasis on them, if there is any."""
    if emphasis is not None:
        for i in range(len(rows)):
            weight[i] *= emphasis.of_row[rows[i]]


@jit
def _describe(rows: Any, ids: Any, sides: Any, items: Any, row_sides: Any) -> None:
    """Items and sides of rows."""
    for i in range(len(rows)):
        items[i], row_sides[i] = ids[rows[i]], sides[rows[i]]


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
def _learn(
    workspace: Any, narrow: Any, mixing: Any, emphasis: Any, start: int, stop: int, plan: Any, server: Any, own: Any,
    user: int, loss: Any,
) -> None:  # fmt: skip
    """One step on samples start .. stop; where rows step after all else, the second half of it is theirs."""
    batch, local = workspace.batch, workspace.table
    count = _collect(workspace.slots[start:stop], plan.batch, workspace.seen, batch.rows, batch.weight)
    rows = batch.rows[:count]
    _emphasise(emphasis, rows, batch.weight)
    _describe(rows, workspace.samples.ids, workspace.sides, batch.items, batch.sides)
    table, places = (local, rows) if plan.moves else (server.rows, batch.items[:count])
    if mixing is not None:
        if plan.rate > 0 or plan.item_rate > 0 or plan.layer_rate > 0:
            weigh(mixing, workspace.tile, batch, local, rows, stop - start, workspace.net, workspace.user)
        mix_rows(mixing, local, rows)
        table, places = mixing.mixed, mixing.places[:count]
    halves = 2 if plan.dual and plan.moves else 1
    for half in range(halves):
        first, last = half == 0, half == halves - 1
        wanted = Wanted(last, first, first)
        loss[0] += _gradients(workspace, narrow, count, table, places, plan, server, wanted)
        loss[1] += 1
        if mixing is not None:
            loss[0] += settle(mixing, local, rows, batch.x)
        if last:
            _step_rows(local, rows, batch.v, batch.x, plan.item_rate if plan.moves else np.float32(-1.0))
        if first:
            _step_score(workspace, plan, own, user)


@jit
def _step_score(workspace: Any, plan: Any, own: Any, user: int) -> None:
    """Layers, p and q step; layers that stay are to be sent as a gradient."""
    if plan.moves or plan.dual:
        _step(workspace.net.flat, workspace.gradient.flat, plan.layer_rate)
        turn(workspace.net)
    else:
        _step(workspace.outbox, workspace.gradient.flat, np.float32(-1.0))
    if plan.moves:
        _step(workspace.user, workspace.user_gradient, plan.rate)
    else:
        start = 0
        for part in range(len(own.m)):
            m, v, t = own.m[part][user], own.v[part][user], own.t[part][user]
            some = slice(start, start + len(m))
            t[0] += 1
            _adam(workspace.user[some], workspace.user_gradient[some], m, v, t[0], plan)
            start += len(m)


@jit
def _side(sides: Any, drawn: Any, stride: int) -> None:
    """Every stride-th sample drawn is a positive."""
    sides.fill(1)
    for sample in range(0, len(drawn), stride):
        sides[drawn[sample]] = -1


@jit
def _send_gradients(ids: Any, table: Any, total: Any, sent: Any) -> None:
    """As `send`, of rows that are what is sent."""
    rows: Any = 0
    values: Any = 0
    for row in range(len(table)):
        item, filled = ids[row], np.int32(0)
        for k in range(table.shape[1]):
            total[item, k] += table[row, k]
            filled += np.int32(table[row, k] != 0)
        rows += filled > 0
        values += filled
    sent[0], sent[1], sent[2] = len(table), rows, values


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


@jit
def _add_noise(noise: Any, ids: Any, table: Any, product: int, outbox: Any, ends: Any, key: Any) -> None:
    """Noise on what is sent: v, if there is a product, x and each layer have draws of their own."""
    if noise is not None:
        place, start = 0, 0
        if product > 0:
            laplace(table[:, :product], ids, key, place, noise)
            place += 1
        laplace(table[:, product:], ids, key, place, noise)
        for layer in range(len(ends)):
            values = outbox[start : ends[layer]]
            laplace(values.reshape(1, len(values)), _ALONE, key, place + 1 + layer, noise)
            start = ends[layer]


@jit
def _keep_layers(values: Any, layers: Any, user: int) -> None:
    """The user's own layers, or p and q, for the next round."""
    start = 0
    for layer in range(len(layers)):
        out = layers[layer][user]
        copy(values[start : start + len(out)], out)
        start += len(out)


@kernel
def neural_round(
    parts: Any, plan: Any, noise: Any, workspace: Any, narrow: Any, mixing: Any, emphasis: Any, histories: Any,
    server: Any, players: Any, own: Any, out: Any,
) -> None:  # fmt: skip
    """The round of one thread's users. What they keep steps in place, what they send of rows and layers is added up.
    `narrow`: see `kernels.reach`; None: networks are whole. `mixing`: see `kernels.network_plgc`; None: nothing is
    mixed. `emphasis`: None where all samples weigh the same. `noise`: None where there is none."""
    samples, judges, first = workspace.samples, players.judges, True
    part = count_on(parts.next)
    while part < len(parts.ptr) - 1:
        for index in range(parts.ptr[part], parts.ptr[part + 1]):
            user, key = players.users[index], players.keys[index]
            held, count, stride = draw_rows(samples, histories, user, key, plan.negatives)
            ids, table, drawn, slots = (
                samples.ids[:held],
                workspace.table[:held],
                samples.drawn[:count],
                workspace.slots,
            )
            _side(workspace.sides[:held], drawn, stride)
            emphasise(emphasis, user, samples.slot_of, held)
            if plan.moves:
                look_up(server.rows, ids, table)
            else:
                table.fill(0)
            if mixing is not None:
                begin(mixing.mix, user, table)
            load_layers(own.values, user, workspace.user)
            if plan.dual:
                load_layers(own.layers, user, workspace.net.flat)
                turn(workspace.net)
            elif plan.moves or first:  # else they are as they were
                copy(server.layers, workspace.net.flat)
                turn(workspace.net)
                first = False
            workspace.outbox.fill(0)
            span = plan.batch if plan.moves else count
            for epoch in range(plan.epochs):
                shuffled(key, epoch, count, samples.sorting)
                for sample in range(count):
                    slots[sample] = drawn[samples.sorting.order[sample]]
                for start in range(0, count, span):
                    stop = min(count, start + span)
                    _learn(workspace, narrow, mixing, emphasis, start, stop, plan, server, own, user, out.loss[part])
            _keep_layers(workspace.user, own.values, user)
            if mixing is not None:
                end(mixing.mix, user)
            if plan.dual:
                _keep_layers(workspace.net.flat, own.layers, user)
                place = players.places[index]
                if len(judges):
                    copy(judges[place], workspace.user)
                    copy(judges[place, len(workspace.user) :], workspace.net.flat)
                tuned = table[: held if plan.moves else 0]
                ask, scores = players.ask[place], out.scores[place]
                score_own(
                    workspace.tile, samples.slot_of, tuned, server.rows, ask, workspace.net, workspace.user, scores
                )
            elif plan.moves:
                _climb(workspace.net.flat, server.layers, np.float32(-1.0), workspace.outbox)
            _add_noise(noise, ids, table, workspace.batch.v.shape[1], workspace.outbox, server.ends, key)
            if plan.moves:
                send(ids, table, server.rows, out.total[part], out.sent[index])
            else:
                _send_gradients(ids, table, out.total[part], out.sent[index])
            _send_layers(workspace.outbox, server.ends, out.layer_total[part], out.sent[index, 3:])
            release(samples, held)
        merge(parts.ended, part, out)
        part = count_on(parts.next)
