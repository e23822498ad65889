"""The GPU's round of methods whose devices send gradients of a network and keep what is their own: FedRecGEL.

    z_ij = h . [p_i * v_j, t_ij] + b,      t_ij = relu(... relu(q_i U + x_j W_0 + b_0) W_1 + b_1 ...)

Rows and layers do not step within a round, so the distinct items of a device are rows of one batch, each with the weight
of all its samples. A round goes through them three times, with g what comes of the first:
    base      nothing is moved;                                         the loss, and g
    private   p, q moved by rho_private g / |g|;                        their gradient, by which they step
    shared    v, x and layers moved by the device's s = rho_shared / |g| times its g;     the gradients that it sends
Each kernel does one thing with all devices, a few programs for each of them:
    gather    rows and their weights
    through   from x W_0 up to the errors and down to the gradient d_0 before the first ReLU; gradients of W_1 and above
    leave     gradients d_0 W_0^T of x
    slope     the gradient x^T d_0 of W_0
    enter     x' W_0' = x W_0 + s (dx W_0 + x' g_0) of rows moved uphill
    send      what goes to the server of all layers
In the first two passes x W_0 is the same for all devices. The gradient of U is q pull^T, with pull the sum of d_0 over
rows: it is never stored, and U moved uphill adds s |q|^2 pull to what the user brings to the first layer.

Matrices are multiplied by tensor cores. What only decides where to go uphill (`base`, `enter`) is rounded to tf32 there;
the rest is split in two such numbers, which is as exact as float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton.language as tl

from federec.kernels.gpu import Batch, error_of, jit, laplace, many, of_batch, values
from federec.kernels.gpu_network import _cells, _matrix, _vector


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
    hidden: Any
    """[rows, width] x W_0 of rows moved uphill; after a pass d_0."""
    middle: Any
    """[rows, width of the second layer] d_1."""
    pulls: Any
    """[rows, dim] gradients of x; then x moved uphill."""
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
    drawn, rows, order, weights, emphasis, emphases, batch, n_items, EPOCH: tl.constexpr, EMPHASISED: tl.constexpr,
    SWEEP: tl.constexpr
):  # fmt: skip
    """The distinct items of a device and the weights of their samples, each of which weighs one over the number of those
    in its batch; in later epochs only the weights. `weights` [devices, n_items] are zero between uses."""
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
    if EPOCH > 0:
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
def _dot(a, b, sum_, PRECISION: tl.constexpr):
    return tl.dot(a, b, sum_, input_precision=PRECISION)


@jit
def _weight(net, LAYER: tl.constexpr, SHAPE: tl.constexpr):
    place, there = _matrix(
        net + SHAPE.at[2 * LAYER], SHAPE.sizes[LAYER], SHAPE.sizes[LAYER + 1], SHAPE.wide[LAYER], SHAPE.wide[LAYER + 1]
    )
    return tl.load(place, mask=there, other=0.0)


@jit
def _weight_part(net, k, n, LAYER: tl.constexpr, SHAPE: tl.constexpr):
    """Rows k and columns n of W of a layer."""
    place = net + SHAPE.at[2 * LAYER] + k[:, None] * SHAPE.sizes[LAYER + 1] + n[None, :]
    return tl.load(place, mask=values(k < SHAPE.sizes[LAYER], n, SHAPE.sizes[LAYER + 1]), other=0.0)


@jit
def _back(net, d, place, real, low, SHAPE: tl.constexpr, LAYER: tl.constexpr, STEP: tl.constexpr,
          PRECISION: tl.constexpr):  # fmt: skip
    """d W^T of a layer, for the rows of `d` at these places."""
    n = tl.arange(0, SHAPE.wide[LAYER])
    sum_ = _zeros(place, SHAPE.wide[LAYER])
    for begin in range(0, SHAPE.wide[LAYER + 1], STEP):
        k = begin + tl.arange(0, STEP)
        part = tl.load(_cells(d, low + place, k, 0, SHAPE.sizes[LAYER + 1]),
                       mask=values(real, k, SHAPE.sizes[LAYER + 1]), other=0.0)  # fmt: skip
        sum_ = _dot(part, tl.trans(_weight_part(net, n, k, LAYER, SHAPE)), sum_, PRECISION)
    return sum_


@jit
def _above(net, LAYER: tl.constexpr, SHAPE: tl.constexpr):
    """Weight and bias of the layers from LAYER on, and at the end h without the product's part."""
    if len(SHAPE.sizes) - 1 == LAYER:
        return (_vector(net + SHAPE.at[2 * LAYER], SHAPE.sizes[LAYER], SHAPE.wide[LAYER]),)
    else:
        bias = _vector(net + SHAPE.at[2 * LAYER + 1], SHAPE.sizes[LAYER + 1], SHAPE.wide[LAYER + 1])
        return ((_weight(net, LAYER, SHAPE), bias),) + _above(net, LAYER + 1, SHAPE)  # noqa: RUF005


@jit
def _nothing(layers):
    """Gradients of zero for these layers."""
    if len(layers) == 1:
        return (tl.zeros_like(layers[0]),)
    else:
        return ((tl.zeros_like(layers[0][0]), tl.zeros_like(layers[0][1])),) + _nothing(layers[1:])  # noqa: RUF005


@jit
def _blank(SIZE: tl.constexpr):
    return tl.zeros([SIZE], tl.float32)


@jit
def _zeros(a, WIDE: tl.constexpr):
    return tl.zeros([a.shape[0], WIDE], tl.float32)


@jit
def _top(a, layers, sums, base, label, weight, SLOPES: tl.constexpr, PRECISION: tl.constexpr):
    """Forward from a tile's outputs of a layer to the errors, and back: the gradient before that layer's ReLU, errors,
    losses, and `sums` with the gradients of the layers above if SLOPES."""
    if len(layers) == 1:
        h = layers[0]
        e, loss = error_of(base + tl.sum(a * h[None, :], 1), label, weight > 0, 1)
        e *= weight
        total = sums[0]
        if SLOPES:
            total += tl.sum(e[:, None] * a, 0)
        return tl.where(a > 0, e[:, None] * h[None, :], 0.0), e, loss * weight, (total,)
    else:
        w = layers[0][0]
        above = tl.maximum(_dot(a, w, _zeros(a, w.shape[1]), PRECISION) + layers[0][1][None, :], 0.0)
        d, e, loss, rest = _top(above, layers[1:], sums[1:], base, label, weight, SLOPES, PRECISION)
        slope = sums[0][0]
        shift = sums[0][1]
        if SLOPES:
            slope = _dot(tl.trans(a), d, slope, PRECISION)
            shift += tl.sum(d, 0)
        back = _dot(d, tl.trans(w), tl.zeros_like(a), PRECISION)
        return tl.where(a > 0, back, 0.0), e, loss, ((slope, shift),) + rest  # noqa: RUF005


@jit
def _first(server, rows, offsets, device, first, place, real, item, k, MOVED: tl.constexpr, SHAPE: tl.constexpr):
    """Outputs k of the first layer."""
    offset = tl.load(offsets + device * SHAPE.sizes[1] + k, mask=k < SHAPE.sizes[1], other=0.0)
    there = values(real, k, SHAPE.sizes[1])
    if MOVED:
        a = tl.load(_cells(rows.hidden, first + place, k, 0, SHAPE.sizes[1]), mask=there, other=0.0)
    else:
        a = tl.load(_cells(server.known, item, k, 0, SHAPE.sizes[1]), mask=there, other=0.0)
    return tl.maximum(a + offset[None, :], 0.0)


@jit
def _put(first, vector, SIZE: tl.constexpr):
    k = tl.arange(0, vector.shape[0])
    tl.store(first + k, vector, mask=k < SIZE)


@jit
def _put_above(net, sums, LAYER: tl.constexpr, SHAPE: tl.constexpr):
    """Gradients of the layers from LAYER on into a vector of layers."""
    if len(SHAPE.sizes) - 1 == LAYER:
        _put(net + SHAPE.at[2 * LAYER], sums[0], SHAPE.sizes[LAYER])
    else:
        place, there = _matrix(
            net + SHAPE.at[2 * LAYER], SHAPE.sizes[LAYER], SHAPE.sizes[LAYER + 1], SHAPE.wide[LAYER],
            SHAPE.wide[LAYER + 1]
        )  # fmt: skip
        tl.store(place, sums[0][0], mask=there)
        _put(net + SHAPE.at[2 * LAYER + 1], sums[0][1], SHAPE.sizes[LAYER + 1])
        _put_above(net, sums[1:], LAYER + 1, SHAPE)


@many
def up(
    server, rows, sums, offsets, owns, pairs, nets, scales, SHAPE: tl.constexpr, PASS: tl.constexpr,
    PRECISION: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr
):  # fmt: skip
    """All rows of a device, from the first ReLU up to the errors and down to d_1."""
    device = tl.program_id(0).to(tl.int64)
    free: tl.constexpr = SHAPE.top[3] - SHAPE.at[0]  # values without U
    moved: tl.constexpr = PASS == 2
    slopes: tl.constexpr = PASS != 1
    low: tl.constexpr = min(2, len(SHAPE.sizes) - 1)
    first = tl.load(rows.first + device).to(tl.int64)
    count = tl.load(rows.counts + device)
    net = server.layers
    if moved:
        net = nets + device * free - SHAPE.at[0]
    k1 = tl.arange(0, SHAPE.wide[low])
    kp = tl.arange(0, SHAPE.pair)
    if low > 1:
        shift = _vector(net + SHAPE.at[3], SHAPE.sizes[2], SHAPE.wide[2])
    layers = _above(net, low, SHAPE)
    total = _nothing(layers)
    tilt = _blank(SHAPE.wide[low])
    bias = tl.load(net + SHAPE.top[1])
    own = _vector(owns + device * SHAPE.product, SHAPE.product, SHAPE.pair)
    mix = tl.zeros_like(own)
    if moved and SHAPE.product > 0:
        pair = _vector(pairs + device * SHAPE.product, SHAPE.product, SHAPE.pair) * tl.load(scales + device)
    losses = _blank(TILE)
    errors = _blank(TILE)
    squares = _blank(TILE)
    for at in range(0, count, TILE):
        place = at + tl.arange(0, TILE)
        real = place < count
        code = tl.load(rows.codes + first + place, mask=real, other=0)
        weight = tl.load(rows.shares + first + place, mask=real, other=0.0)
        item = code >> 1
        base = tl.zeros_like(weight) + bias
        if SHAPE.product > 0:
            some = values(real, kp, SHAPE.product)
            v = tl.load(_cells(server.rows, item, kp, 0, SHAPE.product + SHAPE.sizes[0]), mask=some, other=0.0)
            if moved:
                v += tl.load(rows.errors + first + place, mask=real, other=0.0)[:, None] * pair[None, :]
            base += tl.sum(v * own[None, :], 1)
        if low > 1:
            a = _zeros(place, SHAPE.wide[2])
            for begin in range(0, SHAPE.wide[1], STEP):
                k = begin + tl.arange(0, STEP)
                part = _first(server, rows, offsets, device, first, place, real, item, k, moved, SHAPE)
                a = _dot(part, _weight_part(net, k, k1, 1, SHAPE), a, PRECISION)
            a = tl.maximum(a + shift[None, :], 0.0)
        else:
            a = _first(server, rows, offsets, device, first, place, real, item, k1, moved, SHAPE)
        d, e, loss, total = _top(a, layers, total, base, (code & 1).to(tl.float32), weight, slopes, PRECISION)
        lies = _cells(rows.middle, first + place, k1, 0, SHAPE.sizes[low])
        tl.store(lies, d, mask=values(real, k1, SHAPE.sizes[low]))
        if low == 1:
            tilt += tl.sum(d, 0)
        losses += loss
        if SHAPE.product > 0:
            mix += tl.sum(e[:, None] * v, 0)
        if slopes:
            errors += e
            squares += e * e
            if moved:
                tl.store(rows.later + first + place, e, mask=real)
            else:
                tl.store(rows.errors + first + place, e, mask=real)
    _put(sums.mix + device * SHAPE.product, mix, SHAPE.product)
    if low == 1:
        _put(sums.pull + device * SHAPE.sizes[1], tilt, SHAPE.sizes[1])
    if slopes:
        tl.store(sums.losses + device, tl.sum(losses, 0))
        tl.store(sums.errors + device, tl.sum(errors, 0))
        tl.store(sums.squares + device, tl.sum(squares, 0))
        into = sums.layers + device * free - SHAPE.at[0]
        _put_above(into, total, low, SHAPE)


@many
def down(
    server, rows, pulls, offsets, nets, SHAPE: tl.constexpr, PASS: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, STEP: tl.constexpr, SPLIT: tl.constexpr
):  # fmt: skip
    """From d_1 to d_0, in every SPLIT-th tile of a device, and their sum."""
    device = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    free: tl.constexpr = SHAPE.top[3] - SHAPE.at[0]
    moved: tl.constexpr = PASS == 2
    first = tl.load(rows.first + device).to(tl.int64)
    count = tl.load(rows.counts + device)
    net = server.layers
    if moved:
        net = nets + device * free - SHAPE.at[0]
    kh = tl.arange(0, SHAPE.wide[1])
    pull = _blank(SHAPE.wide[1])
    for at in range(part * TILE, count, SPLIT * TILE):
        place = at + tl.arange(0, TILE)
        real = place < count
        item = tl.load(rows.codes + first + place, mask=real, other=0) >> 1
        back = _back(net, rows.middle, place, real, first, SHAPE, 1, STEP, PRECISION)
        a = _first(server, rows, offsets, device, first, place, real, item, kh, moved, SHAPE)
        back = tl.where(a > 0, back, 0.0)
        if PASS == 1:
            pull += tl.sum(back, 0)
        else:
            tl.store(_cells(rows.hidden, first + place, kh, 0, SHAPE.sizes[1]), back,
                     mask=values(real, kh, SHAPE.sizes[1]))  # fmt: skip
    if PASS == 1:
        tl.atomic_add(pulls + device * SHAPE.sizes[1] + kh, pull, mask=kh < SHAPE.sizes[1], sem="relaxed")


@many
def slope_above(
    server, rows, gradients, offsets, SHAPE: tl.constexpr, MOVED: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """a_0^T d_1 of a device: HIGH x WIDE values."""
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
        a = _first(server, rows, offsets, device, first, place, real, item, kx, MOVED, SHAPE)
        d = tl.load(_cells(rows.middle, first + place, kh, 0, SHAPE.sizes[2]), mask=values(real, kh, SHAPE.sizes[2]),
                    other=0.0)  # fmt: skip
        shift += d
        sum_ = _dot(tl.trans(a), d, sum_, PRECISION)
    out = gradients + device * free + (SHAPE.at[2] - SHAPE.at[0]) + kx[:, None] * SHAPE.sizes[2] + kh[None, :]
    tl.store(out, sum_, mask=values(kx < SHAPE.sizes[1], kh, SHAPE.sizes[2]))
    if tl.program_id(1) == 0:
        into = gradients + device * free + (SHAPE.at[3] - SHAPE.at[0]) + kh
        tl.store(into, tl.sum(shift, 0), mask=kh < SHAPE.sizes[2])


@many
def slope(
    server, rows, gradients, pulls, SHAPE: tl.constexpr, MOVED: tl.constexpr, PRECISION: tl.constexpr, TILE: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """x^T d_0 of a device: HIGH x WIDE values."""
    device = tl.program_id(0).to(tl.int64)
    free: tl.constexpr = SHAPE.top[3] - SHAPE.at[0]
    first = tl.load(rows.first + device).to(tl.int64)
    count = tl.load(rows.counts + device)
    kx = tl.program_id(1) * HIGH + tl.arange(0, HIGH)
    kh = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    sum_ = tl.zeros([HIGH, WIDE], tl.float32)
    pull = tl.zeros([TILE, WIDE], tl.float32)
    for at in range(0, count, TILE):
        place = at + tl.arange(0, TILE)
        real = place < count
        if MOVED:
            x = tl.load(_cells(rows.pulls, first + place, kx, 0, SHAPE.sizes[0]), mask=values(real, kx, SHAPE.sizes[0]),
                        other=0.0)  # fmt: skip
        else:
            item = tl.load(rows.codes + first + place, mask=real, other=0) >> 1
            x = tl.load(_cells(server.rows, item, kx, SHAPE.product, SHAPE.product + SHAPE.sizes[0]),
                        mask=values(real, kx, SHAPE.sizes[0]), other=0.0)  # fmt: skip
        d = tl.load(_cells(rows.hidden, first + place, kh, 0, SHAPE.sizes[1]), mask=values(real, kh, SHAPE.sizes[1]),
                    other=0.0)  # fmt: skip
        pull += d
        sum_ = _dot(tl.trans(x), d, sum_, PRECISION)
    out = gradients + device * free + kx[:, None] * SHAPE.sizes[1] + kh[None, :]
    tl.store(out, sum_, mask=values(kx < SHAPE.sizes[0], kh, SHAPE.sizes[1]))
    if tl.program_id(1) == 0:
        tl.store(pulls + device * SHAPE.sizes[1] + kh, tl.sum(pull, 0), mask=kh < SHAPE.sizes[1])


@many
def leave(
    server, rows, squares, SHAPE: tl.constexpr, PRECISION: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
    SPLIT: tl.constexpr
):  # fmt: skip
    """Gradients d_0 W_0^T of x, in every SPLIT-th tile of a device, and the sum of their squares."""
    device = tl.program_id(0).to(tl.int64)
    first = tl.load(rows.first + device).to(tl.int64)
    count = tl.load(rows.counts + device)
    k = tl.arange(0, SHAPE.wide[0])
    far = _blank(TILE)
    for at in range(tl.program_id(1) * TILE, count, SPLIT * TILE):
        place = at + tl.arange(0, TILE)
        real = place < count
        change = _back(server.layers, rows.hidden, place, real, first, SHAPE, 0, STEP, PRECISION)
        lies = _cells(rows.pulls, first + place, k, 0, SHAPE.sizes[0])
        tl.store(lies, change, mask=values(real, k, SHAPE.sizes[0]))
        far += tl.sum(change * change, 1)
    tl.atomic_add(squares + device, tl.sum(far, 0), sem="relaxed")


@many
def deliver(
    rows, nets, owns, keys, quantiles, total, changed, filled, scale, SHAPE: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, STEP: tl.constexpr, SPLIT: tl.constexpr, BEFORE: tl.constexpr, LAST: tl.constexpr, NOISY: tl.constexpr
):  # fmt: skip
    """Gradients e h p of v and d_0 W_0^T of x, in every SPLIT-th tile of a device, added to those of earlier epochs if
    there are any BEFORE; after the LAST one they are sent."""
    device = tl.program_id(0).to(tl.int64)
    free: tl.constexpr = SHAPE.top[3] - SHAPE.at[0]
    first = tl.load(rows.first + device).to(tl.int64)
    count = tl.load(rows.counts + device)
    key = tl.load(keys + device)
    own = _vector(owns + device * SHAPE.product, SHAPE.product, SHAPE.pair)
    net = nets + device * free - SHAPE.at[0]
    full = _blank(TILE)
    nonzero = _blank(TILE)
    for at in range(tl.program_id(1) * TILE, count, SPLIT * TILE):
        place = at + tl.arange(0, TILE)
        real = place < count
        item = tl.load(rows.codes + first + place, mask=real, other=0) >> 1
        each = tl.zeros_like(item)
        if SHAPE.product > 0:
            e = tl.load(rows.later + first + place, mask=real, other=0.0)
            each += _send_rows(rows, first, place, item, real, e[:, None] * own[None, :], total, key, quantiles, scale,
                               0, SHAPE.product, 0, SHAPE, BEFORE, LAST, NOISY)  # fmt: skip
        change = _back(net, rows.hidden, place, real, first, SHAPE, 0, STEP, PRECISION)
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
    lies = _cells(rows.kept, first + place, k, FIRST, width)
    if BEFORE:
        change += tl.load(lies, mask=there, other=0.0)
    if LAST:
        if NOISY:
            change = tl.where(there, change + scale * laplace(quantiles, key, item, k, SIZE, NUMBER), 0.0)
        tl.atomic_add(_cells(total, item, k, FIRST, width), change, mask=there, sem="relaxed")
    else:
        tl.store(lies, change, mask=there)
    return tl.sum((change != 0).to(tl.int32), 1)


@many
def enter(
    server, rows, gradients, scales, SHAPE: tl.constexpr, PRECISION: tl.constexpr, TILE: tl.constexpr,
    STEP: tl.constexpr, SPLIT: tl.constexpr
):  # fmt: skip
    """x W_0 of rows moved uphill: of the server's rows it is known, and what the moves add is small."""
    device = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    free: tl.constexpr = SHAPE.top[3] - SHAPE.at[0]
    width: tl.constexpr = SHAPE.product + SHAPE.sizes[0]
    first = tl.load(rows.first + device).to(tl.int64)
    count = tl.load(rows.counts + device)
    scale = tl.load(scales + device)
    kh = tl.arange(0, SHAPE.wide[1])
    for at in range(part * TILE, count, SPLIT * TILE):
        place = at + tl.arange(0, TILE)
        real = place < count
        item = tl.load(rows.codes + first + place, mask=real, other=0) >> 1
        sum_ = _zeros(item, SHAPE.wide[1])
        for begin in range(0, SHAPE.wide[0], STEP):
            k = begin + tl.arange(0, STEP)
            there = values(real, k, SHAPE.sizes[0])
            lies = _cells(rows.pulls, first + place, k, 0, SHAPE.sizes[0])
            dx = tl.load(lies, mask=there, other=0.0)
            x = tl.load(_cells(server.rows, item, k, SHAPE.product, width), mask=there, other=0.0) + scale * dx
            tl.store(lies, x, mask=there)
            inside = values(k < SHAPE.sizes[0], kh, SHAPE.sizes[1])
            cell = k[:, None] * SHAPE.sizes[1] + kh[None, :]
            w = tl.load(server.layers + SHAPE.at[0] + cell, mask=inside, other=0.0)
            g = tl.load(gradients + device * free + cell, mask=inside, other=0.0)
            sum_ = _dot(dx, w, sum_, PRECISION)
            sum_ = _dot(x, g, sum_, PRECISION)
        there = values(real, kh, SHAPE.sizes[1])
        known = tl.load(_cells(server.known, item, kh, 0, SHAPE.sizes[1]), mask=there, other=0.0)
        tl.store(_cells(rows.hidden, first + place, kh, 0, SHAPE.sizes[1]), known + scale * sum_, mask=there)


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
