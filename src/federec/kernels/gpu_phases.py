"""The GPU's round of methods whose devices send gradients of a network and only step what is their own: FedRecGEL.

    z_ij = h . [p_i * v_j, t_ij] + b,      t_ij = relu(... relu(q_i U + x_j W_0 + b_0) W_1 + b_1 ...)

Rows and layers do not step within a round, so the distinct items of a device are rows of one batch, each with the
weight of all its samples. They go through the network three times. With g the gradient found by the first pass,
    base      nothing is moved:                                              the loss, and g
    private   p, q are moved by rho_private g / |g|:                         their gradient, by which they step
    shared    v, x and layers are moved by s g, with s = rho_shared / |g|:   the gradients that are sent
Each kernel does one thing for all devices, with one program or a few for each of them:
    gather        rows and their weights
    through       from x W_0 up to the errors e, and down to the gradients d_1 and d_0 before the ReLUs of both layers
    slope_above   the gradient a_0^T d_1 of W_1, with a_0 the outputs of the first layer; `through` has those above
    slope         the gradient x^T d_0 of W_0
    leave         the gradients d_0 W_0^T of x
    enter         x W_0 of rows and layers that are moved; where they are not, it is the same for all devices
    deliver       the gradients of rows to the server
    send          the gradients of layers to the server
With pull the sum of d_0 over rows, the gradient of U is q pull^T. It is never stored: U moved by it adds s |q|^2 pull
to what the user brings to the first layer. In the private pass only the pull is needed. It is the diagonal of W_1 M,
where M = d_1^T m, summed over rows, and m is 1 for units of the first layer that are active, 0 for others.

Tensor cores multiply. A number is split in two of half precision, three products of which are as exact as float32:
a smaller precision moves ReLU units that are nearly shut, and with them rows, to the other side.

Half precision ends at 65,504. Rows, weights, activations and gradients of logits are multiplied by UP before they are
split, so they must stay below LARGEST, which is 4,094; gradients of logits also after they are multiplied by batch and
error. A larger number leaves a NaN in all that is computed from it, up to what is sent or kept: the kernels hide no
NaN, and `PhasesRound` tells it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton.language as tl

from federec.kernels.gpu import Batch, error_of, jit, laplace, many, of_batch, values
from federec.kernels.gpu_network import columns, load_vector, places, put_vector

BASE, PRIVATE, SHARED = range(3)
UP = 16.0
"""Activations, weights and gradients of logits are multiplied by this before they are split: half precision loses
digits of numbers below 2^-14."""
LARGEST = int(65_504 / UP)
"""Of these numbers before that."""
_PRIVATE = tl.constexpr(PRIVATE)
_SHARED = tl.constexpr(SHARED)
_UP = tl.constexpr(UP)


class Rows(NamedTuple):
    """Distinct items of all devices, one device after the other."""

    first: Any
    """[devices] where a device's rows begin."""
    counts: Any
    """[devices] how many there are."""
    codes: Any
    shares: Any
    """[rows] 2 * item, plus 1 for a positive, and weight of each row."""
    errors: Any
    """[rows] weighted errors of the base pass."""
    later: Any
    """[rows] the same of the shared pass."""
    middle: Any
    """[rows, width of the second layer] d_1."""
    hidden: Any
    """[rows, width] d_0 of the base pass, as `ends`; then _UP times x W_0 of rows moved uphill."""
    pulls: Any
    """[rows, dim] gradients of x in the base pass."""
    ends: Any
    """[rows, width] d_0 of the shared pass, or rather _UP times the gradients of logits: times the error it is d_0."""
    kept: Any
    """[rows, product + dim] gradients of v and x of the passes so far, where there are several."""


class Sums(NamedTuple):
    """Of each device over its rows."""

    pull: Any
    """[devices, width] of d_0."""
    mix: Any
    """[devices, product] of e v."""
    losses: Any
    errors: Any
    squares: Any
    """[devices] of losses, errors and squares of errors."""
    layers: Any
    """[devices, values without U] gradients of layers."""


@many
def gather(
    drawn, rows, order, weights, emphasis, emphases, batch, n_items, AGAIN: tl.constexpr, EMPHASISED: tl.constexpr,
    SWEEP: tl.constexpr
):  # fmt: skip
    """The distinct items of a device and the weights of their samples, each of which weighs one over the number of
    those in its batch; AGAIN: only the weights, for a later epoch. `weights` [devices, n_items] are zero between
    uses."""
    device = tl.program_id(0).to(tl.int64)
    sweep = tl.arange(0, SWEEP)
    weights += device * n_items
    begins = tl.load(drawn.first + device)
    size = tl.load(drawn.counts + device)
    mine = Batch(drawn.samples, order, begins, size, size > batch)
    for at in range(0, size, SWEEP):
        place = at + sweep
        real, sample = of_batch(mine, place)
        together = tl.maximum(tl.minimum(size - place // batch * batch, batch), 1).to(tl.float32)
        tl.atomic_add(weights + (sample >> 1), 1 / together, mask=real, sem="relaxed")
    first = tl.load(rows.first + device).to(tl.int64)
    if EMPHASISED:
        emphases += device * n_items
        user = tl.load(drawn.users + device)
        last = tl.load(emphasis.ptr + user + 1)
        for at in range(tl.load(emphasis.ptr + user), last, SWEEP):
            there = at + sweep < last
            item = tl.load(emphasis.items + at + sweep, mask=there, other=0)
            tl.store(emphases + item, tl.load(emphasis.weights + at + sweep, mask=there, other=0.0), mask=there)
    tl.debug_barrier()
    taken = weights.to(tl.pointer_type(tl.int32), bitcast=True)
    count = 0
    if AGAIN:
        count = tl.load(rows.counts + device)
        for at in range(0, count, SWEEP):
            real = at + sweep < count
            code = tl.load(rows.codes + first + at + sweep, mask=real, other=0)
            weight = tl.atomic_xchg(taken + (code >> 1), 0, mask=real, sem="relaxed").to(tl.float32, bitcast=True)
            if EMPHASISED:
                weight *= tl.load(emphases + (code >> 1), mask=real & ((code & 1) > 0), other=1.0)
            tl.store(rows.shares + first + at + sweep, weight, mask=real)
    else:
        plain = Batch(drawn.samples, order, begins, size, False)
        for at in range(0, size, SWEEP):
            real, code = of_batch(plain, at + sweep)
            weight = tl.atomic_xchg(taken + (code >> 1), 0, mask=real, sem="relaxed").to(tl.float32, bitcast=True)
            lead = real & (weight > 0)
            place = first + count + tl.cumsum(lead.to(tl.int32), 0) - 1
            if EMPHASISED:
                weight *= tl.load(emphases + (code >> 1), mask=lead & ((code & 1) > 0), other=1.0)
            tl.store(rows.codes + place, code, mask=lead)
            tl.store(rows.shares + place, weight, mask=lead)
            count += tl.sum(lead.to(tl.int32), 0)
        tl.store(rows.counts + device, count)


@jit
def _relu(x):
    """NaN stays NaN. Without `propagate_nan` it would become 0, which hides that a number was too large."""
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@jit
def _split(x):
    """Two numbers of half precision whose sum is x; if x is too large, infinity and its opposite."""
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@jit
def _turned(x):
    """Transposed halves."""
    return tl.trans(x[0]), tl.trans(x[1])


@jit
def _dot(a, b, sum_):
    """The sum plus a b, of halves."""
    sum_ = tl.dot(a[1], b[0], sum_)
    sum_ = tl.dot(a[0], b[1], sum_)
    return tl.dot(a[0], b[0], sum_)


@jit
def _blank(SIZE: tl.constexpr):
    return tl.zeros([SIZE], tl.float32)


@jit
def _zeros(a, WIDE: tl.constexpr):
    """A row of zeros for each of a's."""
    return tl.zeros([a.shape[0], WIDE], tl.float32)


@jit
def _weight(net, LAYER: tl.constexpr, SHAPE: tl.constexpr):
    """_UP times W of a layer, in halves."""
    place, there = places(
        net + SHAPE.at[2 * LAYER], SHAPE.sizes[LAYER], SHAPE.sizes[LAYER + 1], SHAPE.wide[LAYER], SHAPE.wide[LAYER + 1]
    )
    return _split(tl.load(place, mask=there, other=0.0) * _UP)


@jit
def _part(net, BEGIN: tl.constexpr, SIZE: tl.constexpr, SHAPE: tl.constexpr):
    """SIZE rows of W_1, from BEGIN on."""
    k = BEGIN + tl.arange(0, SIZE)
    n = tl.arange(0, SHAPE.wide[2])
    place = net + SHAPE.at[2] + k[:, None] * SHAPE.sizes[2] + n[None, :]
    return tl.load(place, mask=values(k < SHAPE.sizes[1], n, SHAPE.sizes[2]), other=0.0)


@jit
def _parts(net, BEGIN: tl.constexpr, SIZE: tl.constexpr, SHAPE: tl.constexpr):
    """_UP times W_1 from row BEGIN on, in parts of SIZE rows, in halves."""
    part = _split(_part(net, BEGIN, SIZE, SHAPE) * _UP)
    if SHAPE.wide[1] > BEGIN + SIZE:
        return (part,) + _parts(net, BEGIN + SIZE, SIZE, SHAPE)  # noqa: RUF005
    else:
        return (part,)


@jit
def _squares(BEGIN: tl.constexpr, SIZE: tl.constexpr, SHAPE: tl.constexpr):
    """Zeros for `_tally`."""
    part = _zeros(tl.arange(0, SHAPE.wide[2]), SIZE)
    if SHAPE.wide[1] > BEGIN + SIZE:
        return (part,) + _squares(BEGIN + SIZE, SIZE, SHAPE)  # noqa: RUF005
    else:
        return (part,)


@jit
def _tally(sums, error, server, rows, offsets, device, first, place, real, item, BEGIN: tl.constexpr,
           SIZE: tl.constexpr, SHAPE: tl.constexpr):  # fmt: skip
    """The sums plus d_1^T m, where m is 1 for active units of the first layer, from BEGIN on in parts of SIZE units."""
    k = BEGIN + tl.arange(0, SIZE)
    active = _first(server, rows, offsets, device, first, place, real, item, k, False, SHAPE) > 0
    active = active.to(tl.float16)
    part = tl.dot(error[0], active, tl.dot(error[1], active, sums[0]))
    if SHAPE.wide[1] > BEGIN + SIZE:
        rest = _tally(
            sums[1:], error, server, rows, offsets, device, first, place, real, item, BEGIN + SIZE, SIZE, SHAPE
        )
        return (part,) + rest  # noqa: RUF005
    else:
        return (part,)


@jit
def _above(net, LAYER: tl.constexpr, SHAPE: tl.constexpr):
    """Weights of the layers from LAYER on, in halves; at the end nothing."""
    if len(SHAPE.sizes) - 1 == LAYER:
        return (0,)
    else:
        return (_weight(net, LAYER, SHAPE),) + _above(net, LAYER + 1, SHAPE)  # noqa: RUF005


@jit
def _nothing(LAYER: tl.constexpr, SHAPE: tl.constexpr, TILE: tl.constexpr):
    """Gradients of zero for the layers from LAYER on; those of biases and of h are added up over the rows of a tile in
    the end."""
    shift = _zeros(tl.arange(0, TILE), SHAPE.wide[min(LAYER + 1, len(SHAPE.sizes) - 1)])
    if len(SHAPE.sizes) - 1 == LAYER:
        return (shift,)
    else:
        slope = _zeros(tl.arange(0, SHAPE.wide[LAYER]), SHAPE.wide[LAYER + 1])
        return ((slope, shift),) + _nothing(LAYER + 1, SHAPE, TILE)  # noqa: RUF005


@jit
def _top(a, net, weights, sums, base, label, weight, lift, LAYER: tl.constexpr, SHAPE: tl.constexpr,
         SLOPES: tl.constexpr):  # fmt: skip
    """Forward from _UP times a tile's inputs of a layer to the errors, and back: _UP times the gradient of the logit
    before the ReLU that made them, errors, losses, and `sums` with _UP times the gradients of the layers above if
    SLOPES, matrices _UP lift times. Vectors are loaded anew: registers are few."""
    if len(SHAPE.sizes) - 1 == LAYER:
        h = load_vector(net + SHAPE.at[2 * LAYER], SHAPE.sizes[LAYER], SHAPE.wide[LAYER])
        e, loss = error_of(base + tl.sum(a * h[None, :], 1) * (1 / _UP), label, weight > 0, 1)
        e *= weight
        total = sums[0]
        if SLOPES:
            total += e[:, None] * a
        return tl.where(a > 0, h[None, :] * _UP, 0.0), e, loss * weight, (total,)
    else:
        w = weights[0]
        halves = _split(a)
        bias = load_vector(net + SHAPE.at[2 * LAYER + 1], SHAPE.sizes[LAYER + 1], SHAPE.wide[LAYER + 1]) * _UP
        above = _relu(_dot(halves, w, _zeros(a, SHAPE.wide[LAYER + 1])) * (1 / _UP) + bias[None, :])
        d, e, loss, rest = _top(above, net, weights[1:], sums[1:], base, label, weight, lift, LAYER + 1, SHAPE, SLOPES)
        slope = sums[0][0]
        shift = sums[0][1]
        if SLOPES:
            error = e[:, None] * d
            shift += error
            slope = _dot(_turned(halves), _split(lift * error), slope)
        back = _dot(_split(d), _turned(w), tl.zeros_like(a)) * (1 / _UP)
        return tl.where(a > 0, back, 0.0), e, loss, ((slope, shift),) + rest  # noqa: RUF005


@jit
def _first(server, rows, offsets, device, first, place, real, item, k, MOVED: tl.constexpr, SHAPE: tl.constexpr):
    """_UP times columns k of q U + x W_0 + b_0, before the first ReLU."""
    lies = columns(server.known, item, k, 0, SHAPE.sizes[1])
    if MOVED:
        lies = columns(rows.hidden, first + place, k, 0, SHAPE.sizes[1])
    a = tl.load(lies, mask=values(real, k, SHAPE.sizes[1]), other=0.0)
    offset = tl.load(offsets + device * SHAPE.sizes[1] + k, mask=k < SHAPE.sizes[1], other=0.0)
    return a + offset[None, :]


@jit
def _other(server, rows, pairs, scales, device, first, place, real, item, MOVED: tl.constexpr, SHAPE: tl.constexpr):
    """Rows v of a tile."""
    k = tl.arange(0, SHAPE.pair)
    there = values(real, k, SHAPE.product)
    v = tl.load(columns(server.rows, item, k, 0, SHAPE.product + SHAPE.sizes[0]), mask=there, other=0.0)
    if MOVED:
        pair = load_vector(pairs + device * SHAPE.product, SHAPE.product, SHAPE.pair) * tl.load(scales + device)
        v += tl.load(rows.errors + first + place, mask=real, other=0.0)[:, None] * pair[None, :]
    return v


@jit
def _put_above(net, sums, scale, LAYER: tl.constexpr, SHAPE: tl.constexpr):
    """Gradients of the layers from LAYER on into a vector of layers, matrices times `scale`."""
    if len(SHAPE.sizes) - 1 == LAYER:
        put_vector(net + SHAPE.at[2 * LAYER], tl.sum(sums[0], 0) * (1 / _UP), SHAPE.sizes[LAYER])
    else:
        place, there = places(
            net + SHAPE.at[2 * LAYER], SHAPE.sizes[LAYER], SHAPE.sizes[LAYER + 1], SHAPE.wide[LAYER],
            SHAPE.wide[LAYER + 1]
        )  # fmt: skip
        tl.store(place, sums[0][0] * scale, mask=there)
        put_vector(net + SHAPE.at[2 * LAYER + 1], tl.sum(sums[0][1], 0) * (1 / _UP), SHAPE.sizes[LAYER + 1])
        _put_above(net, sums[1:], scale, LAYER + 1, SHAPE)


@many
def through(
    server, rows, sums, offsets, owns, pairs, nets, scales, lift, SHAPE: tl.constexpr, PASS: tl.constexpr,
    TILE: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    """A pass of all rows of a device: from the first ReLU up to the errors and down to d_0."""
    device = tl.program_id(0).to(tl.int64)
    free: tl.constexpr = SHAPE.top[3] - SHAPE.at[0]  # values without U
    moved: tl.constexpr = PASS == _SHARED
    slopes: tl.constexpr = PASS != _PRIVATE
    deep: tl.constexpr = len(SHAPE.sizes) > 2
    above: tl.constexpr = min(2, len(SHAPE.sizes) - 1)
    first = tl.load(rows.first + device).to(tl.int64)
    count = tl.load(rows.counts + device)
    net = server.layers
    if moved:
        net = nets + device * free - SHAPE.at[0]
    if deep:
        w = _parts(net, 0, SIZE, SHAPE)
        if not slopes:
            tally = _squares(0, SIZE, SHAPE)
    weights = _above(net, above, SHAPE)
    total = _nothing(above, SHAPE, TILE)
    bias = tl.load(net + SHAPE.top[1])
    losses = _blank(TILE)
    mix = _zeros(losses, SHAPE.pair)
    errors = _blank(TILE)
    squares = _blank(TILE)
    pull = _blank(SHAPE.wide[1])
    for at in range(0, count, TILE):
        place = at + tl.arange(0, TILE)
        real = place < count
        code = tl.load(rows.codes + first + place, mask=real, other=0)
        weight = tl.load(rows.shares + first + place, mask=real, other=0.0)
        item = code >> 1
        base = tl.zeros_like(weight) + bias
        if SHAPE.product > 0:
            v = _other(server, rows, pairs, scales, device, first, place, real, item, moved, SHAPE)
            own = load_vector(owns + device * SHAPE.product, SHAPE.product, SHAPE.pair)
            base += tl.sum(v * own[None, :], 1)
        label = (code & 1).to(tl.float32)
        if deep:
            a = _zeros(place, SHAPE.wide[2])
            for part in tl.static_range(SHAPE.wide[1] // SIZE):
                kh = part * SIZE + tl.arange(0, SIZE)
                low = _first(server, rows, offsets, device, first, place, real, item, kh, moved, SHAPE)
                a = _dot(_split(_relu(low)), w[part], a)
            shift = load_vector(net + SHAPE.at[3], SHAPE.sizes[2], SHAPE.wide[2]) * _UP
            a = _relu(a * (1 / _UP) + shift[None, :])
        else:
            kh = tl.arange(0, SHAPE.wide[1])
            a = _relu(_first(server, rows, offsets, device, first, place, real, item, kh, moved, SHAPE))
        d, e, loss, total = _top(a, net, weights, total, base, label, weight, lift, above, SHAPE, slopes)
        if deep:
            if slopes:
                k = tl.arange(0, SHAPE.wide[2])
                lies = columns(rows.middle, first + place, k, 0, SHAPE.sizes[2])
                tl.store(lies, (lift * e)[:, None] * d, mask=values(real, k, SHAPE.sizes[2]))
                halves = _split(d)
                for part in tl.static_range(SHAPE.wide[1] // SIZE):
                    kh = part * SIZE + tl.arange(0, SIZE)
                    back = _dot(halves, _turned(w[part]), _zeros(place, SIZE)) * (1 / _UP)
                    low = _first(server, rows, offsets, device, first, place, real, item, kh, moved, SHAPE)
                    _put_ends(rows, first, place, real, kh, tl.where(low > 0, back, 0.0), moved, SHAPE)
            else:
                error = _turned(_split((lift * e)[:, None] * d))
                tally = _tally(tally, error, server, rows, offsets, device, first, place, real, item, 0, SIZE, SHAPE)
        elif slopes:
            _put_ends(rows, first, place, real, kh, d, moved, SHAPE)
        else:
            pull += tl.sum(e[:, None] * d, 0)
        if SHAPE.product > 0:
            mix += e[:, None] * _other(server, rows, pairs, scales, device, first, place, real, item, moved, SHAPE)
        if moved:
            tl.store(rows.later + first + place, e, mask=real)
        elif slopes:
            tl.store(rows.errors + first + place, e, mask=real)
        if slopes:
            losses += loss
            errors += e
            squares += e * e
    if SHAPE.product > 0:
        put_vector(sums.mix + device * SHAPE.product, tl.sum(mix, 0), SHAPE.product)
    if slopes:
        tl.store(sums.losses + device, tl.sum(losses, 0))
        tl.store(sums.errors + device, tl.sum(errors, 0))
        tl.store(sums.squares + device, tl.sum(squares, 0))
        _put_above(sums.layers + device * free - SHAPE.at[0], total, 1 / (lift * _UP * _UP), above, SHAPE)
    elif deep:
        for part in tl.static_range(SHAPE.wide[1] // SIZE):
            kh = part * SIZE + tl.arange(0, SIZE)
            pull = tl.sum(_part(net, part * SIZE, SIZE, SHAPE) * tl.trans(tally[part]), 1) * (1 / (lift * _UP))
            tl.store(sums.pull + device * SHAPE.sizes[1] + kh, pull, mask=kh < SHAPE.sizes[1])
    else:
        put_vector(sums.pull + device * SHAPE.sizes[1], pull * (1 / _UP), SHAPE.sizes[1])


@jit
def _put_ends(rows, first, place, real, k, d, MOVED: tl.constexpr, SHAPE: tl.constexpr):
    """Keep columns k of d_0 over its error."""
    lies = columns(rows.hidden, first + place, k, 0, SHAPE.sizes[1])
    if MOVED:
        lies = columns(rows.ends, first + place, k, 0, SHAPE.sizes[1])
    tl.store(lies, d, mask=values(real, k, SHAPE.sizes[1]))


@jit
def _ends(rows, first, place, real, k, MOVED: tl.constexpr, SHAPE: tl.constexpr):
    """What was kept, and the errors."""
    lies = columns(rows.hidden, first + place, k, 0, SHAPE.sizes[1])
    e = rows.errors
    if MOVED:
        lies = columns(rows.ends, first + place, k, 0, SHAPE.sizes[1])
        e = rows.later
    d = tl.load(lies, mask=values(real, k, SHAPE.sizes[1]), other=0.0)
    return d, tl.load(e + first + place, mask=real, other=0.0)


@jit
def _moved(server, rows, first, place, real, item, k, scale, MOVED: tl.constexpr, SHAPE: tl.constexpr):
    """_UP times columns k of x, moved uphill if MOVED."""
    there = values(real, k, SHAPE.sizes[0])
    x = tl.load(columns(server.rows, item, k, SHAPE.product, SHAPE.product + SHAPE.sizes[0]), mask=there, other=0.0)
    if MOVED:
        x += scale * tl.load(columns(rows.pulls, first + place, k, 0, SHAPE.sizes[0]), mask=there, other=0.0)
    return x * _UP


@many
def slope_above(
    server, rows, gradients, offsets, lift, SHAPE: tl.constexpr, MOVED: tl.constexpr, TILE: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """a_0^T d_1, the gradient of W_1, of a device: HIGH x WIDE values; and that of b_1."""
    device = tl.program_id(0).to(tl.int64)
    free: tl.constexpr = SHAPE.top[3] - SHAPE.at[0]
    first = tl.load(rows.first + device).to(tl.int64)
    count = tl.load(rows.counts + device)
    kx = tl.program_id(1) * HIGH + tl.arange(0, HIGH)
    kh = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    sum_ = tl.zeros([HIGH, WIDE], tl.float32)
    shift = tl.zeros([TILE, WIDE], tl.float32)
    for at in range(0, count, TILE):
        place = at + tl.arange(0, TILE)
        real = place < count
        item = tl.load(rows.codes + first + place, mask=real, other=0) >> 1
        there = values(real, kh, SHAPE.sizes[2])
        d = tl.load(columns(rows.middle, first + place, kh, 0, SHAPE.sizes[2]), mask=there, other=0.0)
        a = _first(server, rows, offsets, device, first, place, real, item, kx, MOVED, SHAPE)
        shift += d
        sum_ = _dot(_turned(_split(_relu(a))), _split(d), sum_)
    net = gradients + device * free - SHAPE.at[0]
    out = net + SHAPE.at[2] + kx[:, None] * SHAPE.sizes[2] + kh[None, :]
    tl.store(out, sum_ * (1 / (lift * _UP * _UP)), mask=values(kx < SHAPE.sizes[1], kh, SHAPE.sizes[2]))
    if tl.program_id(1) == 0:
        tl.store(net + SHAPE.at[3] + kh, tl.sum(shift, 0) / (lift * _UP), mask=kh < SHAPE.sizes[2])


@many
def slope(
    server, rows, gradients, pulls, scales, lift, SHAPE: tl.constexpr, MOVED: tl.constexpr, TILE: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """x^T d_0, the gradient of W_0, of a device: HIGH x WIDE values; and the sum of d_0."""
    device = tl.program_id(0).to(tl.int64)
    free: tl.constexpr = SHAPE.top[3] - SHAPE.at[0]
    first = tl.load(rows.first + device).to(tl.int64)
    count = tl.load(rows.counts + device)
    kx = tl.program_id(1) * HIGH + tl.arange(0, HIGH)
    kh = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    sum_ = tl.zeros([HIGH, WIDE], tl.float32)
    pull = tl.zeros([TILE, WIDE], tl.float32)
    scale = tl.load(scales + device)
    for at in range(0, count, TILE):
        place = at + tl.arange(0, TILE)
        real = place < count
        item = tl.load(rows.codes + first + place, mask=real, other=0) >> 1
        x = _moved(server, rows, first, place, real, item, kx, scale, MOVED, SHAPE)
        d, e = _ends(rows, first, place, real, kh, MOVED, SHAPE)
        d *= (lift * e)[:, None]
        pull += d
        sum_ = _dot(_turned(_split(x)), _split(d), sum_)
    part = 1 / (lift * _UP)
    out = gradients + device * free + kx[:, None] * SHAPE.sizes[1] + kh[None, :]
    tl.store(out, sum_ * (part / _UP), mask=values(kx < SHAPE.sizes[0], kh, SHAPE.sizes[1]))
    if tl.program_id(1) == 0:
        tl.store(pulls + device * SHAPE.sizes[1] + kh, tl.sum(pull, 0) * part, mask=kh < SHAPE.sizes[1])


@many
def leave(server, rows, squares, SHAPE: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr):
    """Gradients d_0 W_0^T of x, in every SPLIT-th tile of a device, and the sum of their squares."""
    device = tl.program_id(0).to(tl.int64)
    first = tl.load(rows.first + device).to(tl.int64)
    count = tl.load(rows.counts + device)
    k = tl.arange(0, SHAPE.wide[0])
    kh = tl.arange(0, SHAPE.wide[1])
    w = _turned(_weight(server.layers, 0, SHAPE))
    far = _blank(TILE)
    for at in range(tl.program_id(1) * TILE, count, SPLIT * TILE):
        place = at + tl.arange(0, TILE)
        real = place < count
        d, e = _ends(rows, first, place, real, kh, False, SHAPE)
        change = _dot(_split(d), w, _zeros(place, SHAPE.wide[0])) * (e * (1 / _UP / _UP))[:, None]
        lies = columns(rows.pulls, first + place, k, 0, SHAPE.sizes[0])
        tl.store(lies, change, mask=values(real, k, SHAPE.sizes[0]))
        far += tl.sum(change * change, 1)
    tl.atomic_add(squares + device, tl.sum(far, 0), sem="relaxed")


@many
def enter(server, rows, nets, scales, SHAPE: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr):
    """x W_0 of rows and layers moved uphill, in every SPLIT-th tile of a device."""
    device = tl.program_id(0).to(tl.int64)
    free: tl.constexpr = SHAPE.top[3] - SHAPE.at[0]
    first = tl.load(rows.first + device).to(tl.int64)
    count = tl.load(rows.counts + device)
    scale = tl.load(scales + device)
    k = tl.arange(0, SHAPE.wide[0])
    kh = tl.arange(0, SHAPE.wide[1])
    w = _weight(nets + device * free - SHAPE.at[0], 0, SHAPE)
    for at in range(tl.program_id(1) * TILE, count, SPLIT * TILE):
        place = at + tl.arange(0, TILE)
        real = place < count
        item = tl.load(rows.codes + first + place, mask=real, other=0) >> 1
        x = _moved(server, rows, first, place, real, item, k, scale, True, SHAPE)
        product = _dot(_split(x), w, _zeros(place, SHAPE.wide[1])) * (1 / _UP)
        lies = columns(rows.hidden, first + place, kh, 0, SHAPE.sizes[1])
        tl.store(lies, product, mask=values(real, kh, SHAPE.sizes[1]))


@many
def deliver(
    rows, nets, owns, keys, quantiles, total, changed, filled, scale, SHAPE: tl.constexpr, TILE: tl.constexpr,
    SPLIT: tl.constexpr, BEFORE: tl.constexpr, LAST: tl.constexpr, NOISY: tl.constexpr
):  # fmt: skip
    """Gradients e h p of v and d_0 W_0^T of x, in every SPLIT-th tile of a device, added to those of earlier epochs if
    there are any BEFORE; after the LAST one they are sent."""
    device = tl.program_id(0).to(tl.int64)
    free: tl.constexpr = SHAPE.top[3] - SHAPE.at[0]
    first = tl.load(rows.first + device).to(tl.int64)
    count = tl.load(rows.counts + device)
    key = tl.load(keys + device)
    kh = tl.arange(0, SHAPE.wide[1])
    own = load_vector(owns + device * SHAPE.product, SHAPE.product, SHAPE.pair)
    w = _turned(_weight(nets + device * free - SHAPE.at[0], 0, SHAPE))
    full = _blank(TILE)
    nonzero = _blank(TILE)
    for at in range(tl.program_id(1) * TILE, count, SPLIT * TILE):
        place = at + tl.arange(0, TILE)
        real = place < count
        item = tl.load(rows.codes + first + place, mask=real, other=0) >> 1
        d, e = _ends(rows, first, place, real, kh, True, SHAPE)
        each = tl.zeros_like(item)
        if SHAPE.product > 0:
            each += _send_rows(rows, first, place, item, real, e[:, None] * own[None, :], total, key, quantiles, scale,
                               0, SHAPE.product, 0, SHAPE, BEFORE, LAST, NOISY)  # fmt: skip
        change = _dot(_split(d), w, _zeros(place, SHAPE.wide[0])) * (e * (1 / _UP / _UP))[:, None]
        number: tl.constexpr = 1 if SHAPE.product > 0 else 0
        each += _send_rows(rows, first, place, item, real, change, total, key, quantiles, scale, SHAPE.product,
                           SHAPE.sizes[0], number, SHAPE, BEFORE, LAST, NOISY)  # fmt: skip
        full += (each > 0).to(tl.float32)
        nonzero += each.to(tl.float32)
    if LAST:
        tl.atomic_add(changed + device, tl.sum(full, 0), sem="relaxed")
        tl.atomic_add(filled + device, tl.sum(nonzero, 0), sem="relaxed")


@jit
def _send_rows(rows, first, place, item, real, change, total, key, quantiles, scale, FIRST: tl.constexpr,
               SIZE: tl.constexpr, NUMBER: tl.constexpr, SHAPE: tl.constexpr, BEFORE: tl.constexpr, LAST: tl.constexpr,
               NOISY: tl.constexpr):  # fmt: skip
    """Send a part of a tile's gradients, whose noise has draws of its own, or keep it; returns how many values of each
    row are not zero."""
    width: tl.constexpr = SHAPE.product + SHAPE.sizes[0]
    k = tl.arange(0, change.shape[1])
    there = values(real, k, SIZE)
    lies = columns(rows.kept, first + place, k, FIRST, width)
    if BEFORE:
        change += tl.load(lies, mask=there, other=0.0)
    if LAST:
        if NOISY:
            change = tl.where(there, change + scale * laplace(quantiles, key, item, k, SIZE, NUMBER), 0.0)
        tl.atomic_add(columns(total, item, k, FIRST, width), change, mask=there, sem="relaxed")
    else:
        tl.store(lies, change, mask=there)
    return tl.sum((change != 0).to(tl.int32), 1)


@many
def send(
    gradients, vectors, pulls, keys, quantiles, total, filled, scale, devices, epochs, SHAPE: tl.constexpr,
    NUMBER: tl.constexpr, NOISY: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """Add what GROUP devices send of the NUMBER-th layer to the total, and how many values of each are not zero to
    `filled`. Gradients of U are q pull^T, added up over epochs: `vectors` [epochs, devices, product + dim] and `pulls`
    [epochs, devices, width]."""
    free: tl.constexpr = SHAPE.top[3] - SHAPE.at[0]
    begin: tl.constexpr = SHAPE.ends[NUMBER]
    size: tl.constexpr = SHAPE.ends[NUMBER + 1] - begin
    dim: tl.constexpr = SHAPE.sizes[0]
    wide: tl.constexpr = SHAPE.sizes[1]
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = k < size
    sum_ = tl.zeros([BLOCK], tl.float32)
    part = tl.program_id(1).to(tl.int64) * GROUP
    for number in range(tl.minimum(devices - part, GROUP)):
        device = part + number
        if NUMBER == 0:
            outer = k < dim * wide
            change = tl.load(gradients + device * free + k - dim * wide, mask=there & (k >= dim * wide), other=0.0)
            for epoch in range(epochs):
                at = epoch * devices + device
                q = tl.load(vectors + at * (SHAPE.product + dim) + SHAPE.product + k // wide, mask=outer, other=0.0)
                change += q * tl.load(pulls + at * wide + k % wide, mask=outer, other=0.0)
        else:
            change = tl.load(gradients + device * free + (begin - SHAPE.at[0]) + k, mask=there, other=0.0)
        if NOISY:  # the draws of the first layer follow those of the item tables
            draws: tl.constexpr = NUMBER + (2 if SHAPE.product > 0 else 1)
            key = tl.load(keys + device)
            noise = laplace(quantiles, key, tl.zeros([1], tl.int32), k, 1, draws)
            change = tl.where(there, change + scale * tl.reshape(noise, [BLOCK]), 0.0)
        sum_ += change
        tl.atomic_add(filled + device, tl.sum((change != 0).to(tl.float32), 0), sem="relaxed")
    tl.atomic_add(total + begin + k, sum_, mask=there, sem="relaxed")
