"""The GPU's round of methods whose rows and layers step on the device and whose score is a narrow network: FedNCF, with
or without sharpness-aware steps, emphasis on new items and noise on what is sent. `gpu_phases` plays those that send
gradients.

    z_ij = h . [p_i * v_j, t_ij] + b,      t_ij = relu(... relu(q_i U + x_j W_0 + b_0) W_1 + b_1 ...)

One program trains one device after the other, longest first, taken from a queue. The rows of a step are its distinct
items, each with the weight of all its samples. They go through the network a tile at a time, in up to three loops:
`_enter` takes x W_0, `_pass` the layers above it forward and back, `_leave` the gradients of x and W_0. What lies
between the loops, and the device's own layers, are in the program's part of the buffers, which stays near the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton.language as tl

from federec.kernels.gpu import Batch, error_of, jit, laplace, many, of_batch, report, unmark, values


class Plan(NamedTuple):
    """How a device learns in the round and what it sends; the same for all. `methods.forms.NeuralScore` tells more."""

    batch: Any
    epochs: Any
    rate: Any
    item_rate: Any
    layer_rate: Any
    rho_shared: Any
    rho_private: Any
    laplace: Any


class Server(NamedTuple):
    """What devices receive."""

    rows: Any
    """[n_items, product + dim] v and x."""
    layers: Any
    """All layers, as one vector."""
    known: Any
    """[n_items, width] x W_0 of all items, where rows and layers do not move."""


class Emphasis(NamedTuple):
    """Weights of positives (`plugins.recency`)."""

    ptr: Any
    items: Any
    weights: Any
    """Of all devices' distinct items, one device after the other."""


class Buffers(NamedTuple):
    """The workspaces of all programs, one after the other."""

    tables: Any
    marks: Any
    weights: Any
    emphasis: Any
    codes: Any
    shares: Any
    errors: Any
    hidden: Any
    pulls: Any
    nets: Any
    gradients: Any
    uphill: Any
    queue: Any
    """[1] the number of devices that are taken."""


class Outcome(NamedTuple):
    """Where a round puts what comes of it."""

    total: Any
    """[n_items, product + dim] the sum of what is sent of rows."""
    layers: Any
    """[programs, values] each program's sum of what is sent of layers."""
    figures: Any
    """[5 + layers, devices] see `gpu.report`; then how many values of each layer are not zero."""


class Workspace(NamedTuple):
    """Where a program keeps the device at hand."""

    table: Any
    """[n_items, product + dim] its rows."""
    mark: Any
    """[n_items] the number of the device, plus 1, that has drawn the item."""
    weight: Any
    """[n_items] of the item's samples in a step, zero between uses."""
    emphasis: Any
    """[n_items] weight of each positive, where not all weigh the same."""
    codes: Any
    shares: Any
    """[rows] 2 * item, plus 1 for a positive, and weight of each row of a step."""
    error: Any
    """[rows] as taken where nothing is moved uphill."""
    hidden: Any
    """[rows, width] x W_0 of each row; after the pass its gradient."""
    pulls: Any
    """[rows, dim] gradients of x; after `_enter`, x moved uphill by them."""
    net: Any
    """Layers."""
    gradient: Any
    uphill: Any
    """Layers moved uphill."""
    tile: Any
    sweep: Any
    """0, 1, ... for rows that go through the network together, and for samples that are looked at together."""


@dataclass(frozen=True)
class Shape:
    """Widths of the network and where its layers lie in a vector of all of them. The compiler knows it."""

    sizes: tuple[int, ...]
    """Of x and of each layer."""
    wide: tuple[int, ...]
    """The same, each padded to a power of two."""
    product: int
    """Width of p and v; 0 means that there is no product."""
    pair: int
    """The same, padded."""
    at: tuple[int, ...]
    """Where W and b of each layer begin, then h without the product's part."""
    top: tuple[int, int, int, int]
    """Where h's part for the product begins, b, and U; then the number of all values."""
    ends: tuple[int, ...]
    """Where each layer of an update begins; then the number of all values."""


class User(NamedTuple):
    """A device's own vectors, or their gradients."""

    p: Any
    q: Any


@jit
def _product(a, b, sum_, LEFT: tl.constexpr = False, RIGHT: tl.constexpr = False):
    """The sum plus a b, with a or b transposed where LEFT or RIGHT say so; as exact as float32 is."""
    if LEFT:
        a = tl.trans(a)
    if RIGHT:
        b = tl.trans(b)
    return tl.dot(a, b, sum_, input_precision="ieee")


@jit
def _no(a, WIDE: tl.constexpr):
    """Zeros for the product of a and a matrix of WIDE columns."""
    return tl.zeros([a.shape[0], WIDE], tl.float32)


@jit
def places(first, ROWS: tl.constexpr, COLUMNS: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """Where the values of a matrix lie that is padded to HIGH x WIDE, and which there are."""
    i = tl.arange(0, HIGH)
    k = tl.arange(0, WIDE)
    return first + i[:, None] * COLUMNS + k[None, :], (i < ROWS)[:, None] & (k < COLUMNS)[None, :]


@jit
def load_vector(first, SIZE: tl.constexpr, WIDE: tl.constexpr):
    """The values of a vector, padded with zeros."""
    k = tl.arange(0, WIDE)
    return tl.load(first + k, mask=k < SIZE, other=0.0)


@jit
def put_vector(first, vector, SIZE: tl.constexpr):
    """Store a vector without its padding; returns the sum of its squares."""
    k = tl.arange(0, vector.shape[0])
    tl.store(first + k, vector, mask=k < SIZE)
    return tl.sum(vector * vector, 0)


@jit
def _weight(net, LAYER: tl.constexpr, SHAPE: tl.constexpr):
    """W of a layer."""
    place, there = places(
        net + SHAPE.at[2 * LAYER], SHAPE.sizes[LAYER], SHAPE.sizes[LAYER + 1], SHAPE.wide[LAYER], SHAPE.wide[LAYER + 1]
    )
    return tl.load(place, mask=there, other=0.0)


@jit
def _put_weight(net, weight, LAYER: tl.constexpr, SHAPE: tl.constexpr):
    """Store W of a layer; returns the sum of its squares."""
    place, there = places(
        net + SHAPE.at[2 * LAYER], SHAPE.sizes[LAYER], SHAPE.sizes[LAYER + 1], SHAPE.wide[LAYER], SHAPE.wide[LAYER + 1]
    )
    tl.store(place, weight, mask=there)
    return tl.sum(tl.sum(weight * weight, 1), 0)


@jit
def _block(net, SHAPE: tl.constexpr):
    """Where U lies, and which values there are."""
    return places(net + SHAPE.top[2], SHAPE.sizes[0], SHAPE.sizes[1], SHAPE.wide[0], SHAPE.wide[1])


@jit
def _user_weight(net, SHAPE: tl.constexpr):
    """U."""
    place, there = _block(net, SHAPE)
    return tl.load(place, mask=there, other=0.0)


@jit
def _above(net, LAYER: tl.constexpr, SHAPE: tl.constexpr):
    """Weight and bias of the layers from LAYER on, and at the end h without the product's part."""
    if len(SHAPE.sizes) - 1 == LAYER:
        return (load_vector(net + SHAPE.at[2 * LAYER], SHAPE.sizes[LAYER], SHAPE.wide[LAYER]),)
    else:
        bias = load_vector(net + SHAPE.at[2 * LAYER + 1], SHAPE.sizes[LAYER + 1], SHAPE.wide[LAYER + 1])
        return ((_weight(net, LAYER, SHAPE), bias),) + _above(net, LAYER + 1, SHAPE)  # noqa: RUF005


@jit
def _nothing(layers):
    """Gradients of zero for these layers."""
    if len(layers) == 1:
        return (tl.zeros_like(layers[0]),)
    else:
        return ((tl.zeros_like(layers[0][0]), tl.zeros_like(layers[0][1])),) + _nothing(layers[1:])  # noqa: RUF005


@jit
def _forward(a, layers, PRECISION: tl.constexpr):
    """The network's part of the logit, of a tile's outputs of the first layer."""
    if len(layers) == 1:
        return tl.sum(a * layers[0][None, :], 1)
    else:
        sums = tl.dot(a, layers[0][0], _no(a, layers[0][0].shape[1]), input_precision=PRECISION)
        return _forward(tl.maximum(sums + layers[0][1][None, :], 0.0), layers[1:], PRECISION)


@jit
def _through(a, layers, sums, base, label, weight):
    """Forward from a tile's outputs of a layer to the errors, and back: the gradient before that layer's ReLU, errors,
    losses, and `sums` with the gradients of the layers above."""
    if len(layers) == 1:
        h = layers[0]
        e, loss = error_of(base + tl.sum(a * h[None, :], 1), label, weight > 0, 1)
        e *= weight
        total = sums[0] + tl.sum(e[:, None] * a, 0)
        return tl.where(a > 0, e[:, None] * h[None, :], 0.0), e, loss * weight, (total,)
    else:
        above = tl.maximum(_product(a, layers[0][0], _no(a, layers[0][0].shape[1])) + layers[0][1][None, :], 0.0)
        d, e, loss, rest = _through(above, layers[1:], sums[1:], base, label, weight)
        slope = _product(a, d, sums[0][0], LEFT=True)
        shift = sums[0][1] + tl.sum(d, 0)
        d = tl.where(a > 0, _product(d, layers[0][0], _no(d, a.shape[1]), RIGHT=True), 0.0)
        return d, e, loss, ((slope, shift),) + rest  # noqa: RUF005


@jit
def _put_above(net, sums, LAYER: tl.constexpr, SHAPE: tl.constexpr):
    """Gradients of the layers from LAYER on into a vector of layers; returns the sum of their squares."""
    if len(SHAPE.sizes) - 1 == LAYER:
        return put_vector(net + SHAPE.at[2 * LAYER], sums[0], SHAPE.sizes[LAYER])
    else:
        squares = _put_weight(net, sums[0][0], LAYER, SHAPE)
        squares += put_vector(net + SHAPE.at[2 * LAYER + 1], sums[0][1], SHAPE.sizes[LAYER + 1])
        return squares + _put_above(net, sums[1:], LAYER + 1, SHAPE)


@jit
def columns(rows, which, k, FIRST: tl.constexpr, WIDTH: tl.constexpr):
    """Where the values of rows lie from the FIRST on, in a table of WIDTH columns."""
    return rows + which[:, None] * WIDTH + FIRST + k[None, :]


@jit
def _emphasise(workspace, emphasis, user):
    """Note the weights of the device's positives."""
    last = tl.load(emphasis.ptr + user + 1)
    for at in range(tl.load(emphasis.ptr + user), last, workspace.sweep.shape[0]):
        there = at + workspace.sweep < last
        item = tl.load(emphasis.items + at + workspace.sweep, mask=there, other=0)
        weight = tl.load(emphasis.weights + at + workspace.sweep, mask=there, other=0.0)
        tl.store(workspace.emphasis + item, weight, mask=there)
    tl.debug_barrier()


@jit
def _collect(workspace, batch, size, EMPHASISED: tl.constexpr):
    """The distinct rows of a step; a sample weighs one over the number of samples in its batch of `size`. Returns how
    many there are."""
    for at in range(0, batch.size, workspace.sweep.shape[0]):
        place = at + workspace.sweep
        real, sample = of_batch(batch, place)
        together = tl.maximum(tl.minimum(batch.size - place // size * size, size), 1).to(tl.float32)
        tl.atomic_add(workspace.weight + (sample >> 1), 1 / together, mask=real, sem="relaxed")
    tl.debug_barrier()
    count = 0
    taken = workspace.weight.to(tl.pointer_type(tl.int32), bitcast=True)
    for at in range(0, batch.size, workspace.sweep.shape[0]):
        real, sample = of_batch(batch, at + workspace.sweep)
        item = sample >> 1
        weight = tl.atomic_xchg(taken + item, 0, mask=real, sem="relaxed").to(tl.float32, bitcast=True)
        lead = real & (weight > 0)
        place = count + tl.cumsum(lead.to(tl.int32), 0) - 1
        if EMPHASISED:
            weight *= tl.load(workspace.emphasis + item, mask=lead & ((sample & 1) > 0), other=1.0)
        tl.store(workspace.codes + place, sample, mask=lead)
        tl.store(workspace.shares + place, weight, mask=lead)
        count += tl.sum(lead.to(tl.int32), 0)
    tl.debug_barrier()
    return count


@jit
def _enter(workspace, net, count, uphill, moved, SHAPE: tl.constexpr):
    """x W_0 of the rows of a step; if they are `moved`, of x moved by `uphill` times its gradient, which is kept."""
    k = tl.arange(0, SHAPE.wide[0])
    kh = tl.arange(0, SHAPE.wide[1])
    weight = _weight(net, 0, SHAPE)
    for at in range(0, count, workspace.tile.shape[0]):
        place = at + workspace.tile
        real = place < count
        item = tl.load(workspace.codes + place, mask=real, other=0) >> 1
        there = values(real, k, SHAPE.sizes[0])
        own = columns(workspace.table, item, k, SHAPE.product, SHAPE.product + SHAPE.sizes[0])
        x = tl.load(own, mask=there, other=0.0)
        if moved:
            pulls = columns(workspace.pulls, place, k, 0, SHAPE.sizes[0])
            x += uphill * tl.load(pulls, mask=there, other=0.0)
            tl.store(pulls, x, mask=there)
        out = columns(workspace.hidden, place, kh, 0, SHAPE.sizes[1])
        product = _product(x, weight, _no(x, SHAPE.wide[1]))
        tl.store(out, product, mask=values(real, kh, SHAPE.sizes[1]))
    tl.debug_barrier()


@jit
def _pass(workspace, net, user, count, row_rate, pair, uphill, plain, final, SHAPE: tl.constexpr):
    """Forward and back with all rows of a step, whose x W_0 is known. Returns the loss, the gradient of the user's
    vectors and the sum of the squares of the others so far. In the `plain` pass nothing is moved uphill; its errors are
    kept, and in the others rows v lie `uphill` along `pair` times them. In the `final` one rows v step."""
    kh = tl.arange(0, SHAPE.wide[1])
    kp = tl.arange(0, SHAPE.pair)
    layers = _above(net, 1, SHAPE)
    sums = _nothing(layers)
    product = load_vector(net + SHAPE.top[0], SHAPE.product, SHAPE.pair)
    own = product * user.p
    bias = tl.load(net + SHAPE.top[1])
    offset = load_vector(net + SHAPE.at[1], SHAPE.sizes[1], SHAPE.wide[1])
    offset += tl.sum(user.q[:, None] * _user_weight(net, SHAPE), 0)
    pull = tl.zeros_like(offset)
    mix = tl.zeros_like(own)
    losses = 0.0
    errors = 0.0
    squares = 0.0
    for at in range(0, count, workspace.tile.shape[0]):
        place = at + workspace.tile
        real = place < count
        code = tl.load(workspace.codes + place, mask=real, other=0)
        weight = tl.load(workspace.shares + place, mask=real, other=0.0)
        item = code >> 1
        there = values(real, kh, SHAPE.sizes[1])
        inner = columns(workspace.hidden, place, kh, 0, SHAPE.sizes[1])
        a = tl.maximum(tl.load(inner, mask=there, other=0.0) + offset[None, :], 0.0)
        base = tl.zeros_like(weight) + bias
        if SHAPE.product > 0:
            some = values(real, kp, SHAPE.product)
            v = tl.load(columns(workspace.table, item, kp, 0, SHAPE.product + SHAPE.sizes[0]), mask=some, other=0.0)
            if not plain:
                v += uphill * tl.load(workspace.error + place, mask=real, other=0.0)[:, None] * pair[None, :]
            base += tl.sum(v * own[None, :], 1)
        d, e, loss, sums = _through(a, layers, sums, base, (code & 1).to(tl.float32), weight)
        losses += tl.sum(loss, 0)
        errors += tl.sum(e, 0)
        squares += tl.sum(e * e, 0)
        pull += tl.sum(d, 0)
        if SHAPE.product > 0:
            mix += tl.sum(e[:, None] * v, 0)
        tl.store(inner, d, mask=there)
        if plain:
            tl.store(workspace.error + place, e, mask=real)
        if SHAPE.product > 0:  # noqa: SIM102 - the compiler knows this one, but not always the next
            if final:
                lies = columns(workspace.table, item, kp, 0, SHAPE.product + SHAPE.sizes[0])
                row = tl.load(lies, mask=some, other=0.0) - row_rate * e[:, None] * own[None, :]
                tl.store(lies, row, mask=some)
    into = workspace.gradient
    size = put_vector(into + SHAPE.at[1], pull, SHAPE.sizes[1])
    squares = squares * tl.sum(own * own, 0) + size * (1 + tl.sum(user.q * user.q, 0)) + errors * errors
    squares += _put_above(into, sums, 1, SHAPE) + put_vector(into + SHAPE.top[0], user.p * mix, SHAPE.product)
    tl.store(into + SHAPE.top[1], errors)
    lies, inside = _block(into, SHAPE)
    tl.store(lies, user.q[:, None] * pull[None, :], mask=inside)
    tl.debug_barrier()
    return losses, User(product * mix, tl.sum(_user_weight(net, SHAPE) * pull[None, :], 1)), squares


@jit
def _leave(workspace, net, count, row_rate, plain, final, SHAPE: tl.constexpr):
    """From the gradient at the first layer to those of x and W_0. Returns the sum of their squares. In the `final` pass
    rows x step; in others their gradients are kept for `_enter`. In the `plain` one nothing was moved uphill."""
    k = tl.arange(0, SHAPE.wide[0])
    kh = tl.arange(0, SHAPE.wide[1])
    weight = _weight(net, 0, SHAPE)
    slope = tl.zeros_like(weight)
    squares = 0.0
    for at in range(0, count, workspace.tile.shape[0]):
        place = at + workspace.tile
        real = place < count
        item = tl.load(workspace.codes + place, mask=real, other=0) >> 1
        there = values(real, k, SHAPE.sizes[0])
        pulls = columns(workspace.pulls, place, k, 0, SHAPE.sizes[0])
        own = columns(workspace.table, item, k, SHAPE.product, SHAPE.product + SHAPE.sizes[0])
        lies = pulls
        if plain:
            lies = own
        x = tl.load(lies, mask=there, other=0.0)
        inner = columns(workspace.hidden, place, kh, 0, SHAPE.sizes[1])
        d = tl.load(inner, mask=values(real, kh, SHAPE.sizes[1]), other=0.0)
        change = _product(d, weight, _no(d, SHAPE.wide[0]), RIGHT=True)
        slope = _product(x, d, slope, LEFT=True)
        if final:
            tl.store(own, tl.load(own, mask=there, other=0.0) - row_rate * change, mask=there)
        else:
            tl.store(pulls, change, mask=there)
        squares += tl.sum(tl.sum(change * change, 1), 0)
    squares += _put_weight(workspace.gradient, slope, 0, SHAPE)
    tl.debug_barrier()
    return squares


@jit
def _climb(workspace, out, start, along, scale, SHAPE: tl.constexpr):
    """start + scale * along, of vectors of layers."""
    for at in range(0, SHAPE.top[3], workspace.sweep.shape[0]):
        k = at + workspace.sweep
        there = k < SHAPE.top[3]
        value = tl.load(start + k, mask=there, other=0.0) + scale * tl.load(along + k, mask=there, other=0.0)
        tl.store(out + k, value, mask=there)
    tl.debug_barrier()


@jit
def _gradient(workspace, user, count, plan, SHAPE: tl.constexpr, SHARP: tl.constexpr):
    """The gradient that a step goes along: of layers into the workspace; rows step. If SHARP, that of each group is
    taken where the group, and nothing else, is moved uphill. Returns the loss and the user's gradient."""
    net = workspace.net
    pair = load_vector(net + SHAPE.top[0], SHAPE.product, SHAPE.pair) * user.p
    if SHARP:
        loss = 0.0
        scale = 0.0
        slope = User(tl.zeros_like(user.p), tl.zeros_like(user.q))
        for phase in range(3):  # nothing is moved; then the user's vectors are; then rows and layers
            plain = phase == 0
            last = phase == 2
            reach = tl.sqrt(tl.sum(slope.p * slope.p, 0) + tl.sum(slope.q * slope.q, 0))
            up = tl.where(phase == 1, plan.rho_private, 0.0) / tl.maximum(reach, 1e-12)
            me = User(user.p + up * slope.p, user.q + up * slope.q)
            now = net
            if last:
                now = workspace.uphill
            _enter(workspace, now, count, scale, last, SHAPE)
            part, found, squares = _pass(
                workspace, now, me, count, plan.item_rate, pair, tl.where(last, scale, 0.0), plain, last, SHAPE
            )
            squares += _leave(workspace, now, tl.where(phase == 1, 0, count), plan.item_rate, plain, last, SHAPE)
            if plain:
                loss = part
                scale = plan.rho_shared / tl.maximum(tl.sqrt(squares), 1e-12)
                _climb(workspace, workspace.uphill, net, workspace.gradient, scale, SHAPE)
            slope = User(tl.where(last, slope.p, found.p), tl.where(last, slope.q, found.q))
    else:
        _enter(workspace, net, count, 0.0, False, SHAPE)
        loss, slope, _ = _pass(workspace, net, user, count, plan.item_rate, pair, 0.0, True, True, SHAPE)
        _leave(workspace, net, count, plan.item_rate, True, True, SHAPE)
    return loss, slope


@jit
def _fetch(workspace, drawn, rows, device, SHAPE: tl.constexpr):
    """The rows of the items drawn; returns how many."""
    held = 0
    for at in range(0, drawn.size, workspace.tile.shape[0]):
        real, sample = of_batch(drawn, at + workspace.tile)
        item = sample >> 1
        new = real & (tl.atomic_xchg(workspace.mark + item, device + 1, mask=real, sem="relaxed") != device + 1)
        held += tl.sum(new.to(tl.int32), 0)
        if SHAPE.product > 0:
            _begin(workspace.table, rows, item, new, 0, SHAPE.product, SHAPE.pair, SHAPE)
        _begin(workspace.table, rows, item, new, SHAPE.product, SHAPE.sizes[0], SHAPE.wide[0], SHAPE)
    tl.debug_barrier()
    return held


@jit
def _begin(table, rows, item, new, FIRST: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, SHAPE: tl.constexpr):
    """A part of the device's rows begins as the server's."""
    k = tl.arange(0, WIDE)
    there = values(new, k, SIZE)
    value = tl.load(columns(rows, item, k, FIRST, SHAPE.product + SHAPE.sizes[0]), mask=there, other=0.0)
    tl.store(columns(table, item, k, FIRST, SHAPE.product + SHAPE.sizes[0]), value, mask=there)


@jit
def _send(workspace, drawn, rows, total, quantiles, key, device, scale, SHAPE: tl.constexpr, NOISY: tl.constexpr):
    """Add what the device sends of rows to the total; returns how many rows and values of it are not zero. No item is
    marked any more."""
    sent = 0
    filled = 0
    for at in range(0, drawn.size, workspace.tile.shape[0]):
        real, sample = of_batch(drawn, at + workspace.tile)
        item = sample >> 1
        lead = unmark(workspace.mark, item, real, device)
        each = tl.zeros_like(item)
        if SHAPE.product > 0:
            each += _send_part(workspace.table, rows, total, item, lead, quantiles, key, 0, scale, 0, SHAPE.product,
                               SHAPE.pair, SHAPE, NOISY)  # fmt: skip
        number: tl.constexpr = 1 if SHAPE.product > 0 else 0
        each += _send_part(workspace.table, rows, total, item, lead, quantiles, key, number, scale, SHAPE.product,
                           SHAPE.sizes[0], SHAPE.wide[0], SHAPE, NOISY)  # fmt: skip
        sent += tl.sum((each > 0).to(tl.int32), 0)
        filled += tl.sum(each, 0)
    return sent, filled


@jit
def _send_part(table, rows, total, item, lead, quantiles, key, number, scale, FIRST: tl.constexpr, SIZE: tl.constexpr,
               WIDE: tl.constexpr, SHAPE: tl.constexpr, NOISY: tl.constexpr):  # fmt: skip
    """The same of a part of the rows, whose noise has draws of its own; returns the number of values of each row."""
    k = tl.arange(0, WIDE)
    there = values(lead, k, SIZE)
    change = tl.load(columns(table, item, k, FIRST, SHAPE.product + SHAPE.sizes[0]), mask=there, other=0.0)
    change -= tl.load(columns(rows, item, k, FIRST, SHAPE.product + SHAPE.sizes[0]), mask=there, other=0.0)
    if NOISY:
        change = tl.where(there, change + scale * laplace(quantiles, key, item, k, SIZE, number), 0.0)
    tl.atomic_add(columns(total, item, k, FIRST, SHAPE.product + SHAPE.sizes[0]), change, mask=there, sem="relaxed")
    return tl.sum((change != 0).to(tl.int32), 1)


@jit
def _send_layers(workspace, layers, into, figures, quantiles, key, device, devices, scale, SHAPE: tl.constexpr,
                 NOISY: tl.constexpr):  # fmt: skip
    """Add what the device sends of layers to the program's sum, and report how many values of each are not zero."""
    for layer in tl.static_range(len(SHAPE.ends) - 1):
        filled = 0
        for at in range(SHAPE.ends[layer], SHAPE.ends[layer + 1], workspace.sweep.shape[0]):
            k = at + workspace.sweep
            there = k < SHAPE.ends[layer + 1]
            change = tl.load(workspace.net + k, mask=there, other=0.0)
            change -= tl.load(layers + k, mask=there, other=0.0)
            if NOISY:  # the draws of the first layer follow those of the item tables
                number: tl.constexpr = layer + (2 if SHAPE.product > 0 else 1)
                noise = laplace(quantiles, key, tl.zeros([1], tl.int32), k - SHAPE.ends[layer], 1, number)
                change = tl.where(there, change + scale * tl.reshape(noise, workspace.sweep.shape), 0.0)
            tl.store(into + k, tl.load(into + k, mask=there, other=0.0) + change, mask=there)
            filled += tl.sum((change != 0).to(tl.int32), 0)
        tl.store(figures + (5 + layer) * devices + device, filled)


@many
def network_round(
    server, vectors, drawn, outcome, emphasis, quantiles, buffers, plan, devices, n_items, shuffled, most,
    SHARP: tl.constexpr, NOISY: tl.constexpr, EMPHASISED: tl.constexpr, SHAPE: tl.constexpr, TILE: tl.constexpr,
    SWEEP: tl.constexpr,
):  # fmt: skip
    """One round of the devices: p and q, `vectors` [devices, product + dim] in the order in which they play, step in
    place; the changes of rows and layers, which step after each batch, are added up."""
    program = tl.program_id(0).to(tl.int64)
    workspace = Workspace(
        buffers.tables + program * n_items * (SHAPE.product + SHAPE.sizes[0]),
        buffers.marks + program * n_items,
        buffers.weights + program * n_items,
        buffers.emphasis + program * n_items,
        buffers.codes + program * most,
        buffers.shares + program * most,
        buffers.errors + program * most,
        buffers.hidden + program * most * SHAPE.sizes[1],
        buffers.pulls + program * most * SHAPE.sizes[0],
        buffers.nets + program * SHAPE.top[3],
        buffers.gradients + program * SHAPE.top[3],
        buffers.uphill + program * SHAPE.top[3],
        tl.arange(0, TILE),
        tl.arange(0, SWEEP),
    )
    layer_total = outcome.layers + program * SHAPE.top[3]
    device = tl.atomic_add(buffers.queue, 1, sem="relaxed")
    while device < devices:
        first = tl.load(drawn.first + device)
        count = tl.load(drawn.counts + device)
        mine = Batch(drawn.samples, drawn.order, first, count, False)
        kept = device.to(tl.int64) * (SHAPE.product + SHAPE.sizes[0])
        user = User(
            load_vector(vectors + kept, SHAPE.product, SHAPE.pair),
            load_vector(vectors + kept + SHAPE.product, SHAPE.sizes[0], SHAPE.wide[0]),
        )
        if EMPHASISED:
            _emphasise(workspace, emphasis, tl.load(drawn.users + device))
        held = _fetch(workspace, mine, server.rows, device, SHAPE)
        _climb(workspace, workspace.net, server.layers, server.layers, 0.0, SHAPE)
        order = drawn.order
        loss = 0.0
        steps = 0
        for _ in range(plan.epochs):
            for begin in range(0, count, plan.batch):
                size = tl.minimum(plan.batch, count - begin)
                batch = Batch(drawn.samples, order, first + begin, size, count > plan.batch)
                number = _collect(workspace, batch, plan.batch, EMPHASISED)
                part, slope = _gradient(workspace, user, number, plan, SHAPE, SHARP)
                _climb(workspace, workspace.net, workspace.net, workspace.gradient, -plan.layer_rate, SHAPE)
                user = User(user.p - plan.rate * slope.p, user.q - plan.rate * slope.q)
                loss += part
                steps += 1
            order += shuffled
        put_vector(vectors + kept, user.p, SHAPE.product)
        put_vector(vectors + kept + SHAPE.product, user.q, SHAPE.sizes[0])

        key = tl.load(drawn.keys + device)
        changed, filled = _send(
            workspace, mine, server.rows, outcome.total, quantiles, key, device, plan.laplace, SHAPE, NOISY
        )
        report(outcome.figures, device, devices, loss, steps, held, changed, filled)
        _send_layers(
            workspace, server.layers, layer_total, outcome.figures, quantiles, key, device, devices, plan.laplace,
            SHAPE, NOISY
        )  # fmt: skip
        tl.debug_barrier()  # the workspace is the next device's
        device = tl.atomic_add(buffers.queue, 1, sem="relaxed")


@many
def network_scores(
    server, users, offsets, ask, scores, asked, SHAPE: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Scores of the items `ask` [users, K] with the server's rows: program (u, t) takes the t-th tile of user u, whose
    vectors are users[u] and who brings offsets[u] to the first layer."""
    device = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    real = at < asked
    item = tl.load(ask + device * asked + at, mask=real, other=0)
    k = tl.arange(0, SHAPE.wide[1])
    offset = load_vector(offsets + device * SHAPE.sizes[1], SHAPE.sizes[1], SHAPE.wide[1])
    x = tl.load(columns(server.known, item, k, 0, SHAPE.sizes[1]), mask=values(real, k, SHAPE.sizes[1]), other=0.0)
    z = _forward(tl.maximum(x + offset[None, :], 0.0), _above(server.layers, 1, SHAPE), PRECISION)
    z += tl.load(server.layers + SHAPE.top[1])
    if SHAPE.product > 0:
        k = tl.arange(0, SHAPE.pair)
        own = load_vector(users + device * (SHAPE.product + SHAPE.sizes[0]), SHAPE.product, SHAPE.pair)
        own *= load_vector(server.layers + SHAPE.top[0], SHAPE.product, SHAPE.pair)
        there = values(real, k, SHAPE.product)
        v = tl.load(columns(server.rows, item, k, 0, SHAPE.product + SHAPE.sizes[0]), mask=there, other=0.0)
        z += tl.sum(v * own[None, :], 1)
    tl.store(scores + device * asked + at, z, mask=real)
