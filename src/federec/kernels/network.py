"""A network that scores items, forward and back, for the kernels: NeuMF and, without its product, NCF.

    z_ij = h . [p_i * v_j, t_ij] + b,      t_ij = relu(... relu(q_i U + x_j W_0 + b_0) W_1 + b_1 ...)

Rows go forward through the layers a tile at a time; back go their patterns (`kernels.patterns`). Inner loops count
from 0 over slices: an index that might be negative, for all the compiler knows, would keep them from the wide
registers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from federec.kernels.compiling import jit, kernel
from federec.kernels.cpu import copy, even, exp, fetch_row, floats, log1p, look_up, sigmoid
from federec.kernels.machine import count_on
from federec.kernels.matrices import multiply
from federec.kernels.patterns import Patterns, add_up, forget, take_in, transpose

_PRODUCTS = 1_000_000  # in one multiplication: up to that OpenBLAS takes matrices as they lie, near the machine's limit
_MOST, _LEAST = 256, 8  # rows in a tile
_AHEAD = 4  # rows from the one that is read to the one that is fetched


class Shape(NamedTuple):
    """Widths of the network."""

    product: int
    """Of p and v; 0 means that there is no product."""
    dim: int
    """Of q and x."""
    hidden: tuple[int, ...]


class Net(NamedTuple):
    """Values of all layers, or their gradient: one vector, and views of its parts."""

    flat: Any
    user: Any
    """U."""
    weights: tuple[Any, ...]
    """W_0, W_1, ..."""
    biases: tuple[Any, ...]
    top: Any
    """h, and b as its last value."""
    turned: tuple[Any, ...]
    """W transposed, which multiplies faster, as of the last `turn`; in a gradient 0."""


class Batch(NamedTuple):
    """The rows of a step."""

    rows: Any
    items: Any
    sides: Any
    weight: Any
    v: Any
    x: Any
    """Gradients of v and x."""
    patterns: Patterns


class Tile(NamedTuple):
    """Some rows on their way through the layers."""

    v: Any
    x: Any
    hidden: tuple[Any, ...]
    """Outputs of each layer."""
    error: Any
    offset: Any
    """What the user brings to the first layer."""
    pair: Any
    """h p, of the product's part of h."""
    places: Any
    """0, 1, 2, ..."""
    pull: Any
    mix: Any
    """Sums over all rows: of the gradient at the first layer, of error times v."""
    units: Any
    """Which units of the first layer the network at hand has, of all. Unsigned, as numbers that might be negative take
    longer to follow."""


def make_net(shape: Shape) -> Net:
    """Layers all 0, in the order that `cohort.layers.mlp_params` declares them."""
    inputs = (shape.dim, *shape.hidden[:-1])
    sizes = [shape.dim * shape.hidden[0]]
    for i, o in zip(inputs, shape.hidden, strict=True):
        sizes += [i * o, o]
    flat = floats(sum(sizes) + shape.product + shape.hidden[-1] + 1)
    user, *layers, top = np.split(flat, np.cumsum(sizes))
    weights = tuple(w.reshape(i, o) for w, i, o in zip(layers[::2], inputs, shape.hidden, strict=True))
    turned = tuple(floats(*w.T.shape) for w in weights)
    return Net(flat, user.reshape(shape.dim, -1), weights, tuple(layers[1::2]), top, turned)


def make_tile(shape: Shape, first: int = 0) -> Tile:
    """For as many rows as go well through the layers from `first` on."""
    weights = make_net(shape).weights
    largest = max((w.size for w in weights[first:]), default=1)
    rows = min(max(_PRODUCTS // largest, _LEAST), _MOST)
    return Tile(
        floats(rows, shape.product),
        floats(rows, shape.dim),
        tuple(floats(rows, size) for size in shape.hidden),
        floats(rows),
        floats(shape.hidden[0]),
        floats(shape.product),
        np.arange(rows, dtype=np.int32),
        floats(shape.hidden[0]),
        floats(shape.product),
        np.arange(shape.hidden[0], dtype=np.uint32),
    )


@jit
def square(values: Any) -> Any:
    total = np.float32(0.0)
    for k in range(len(values)):
        total += values[k] * values[k]
    return total


@jit
def turn(net: Any) -> None:
    """Transpose W of all layers."""
    for layer in range(len(net.turned)):
        transpose(net.weights[layer], net.turned[layer])


@jit
def _gather(
    table: Any, places: Any, uphill: Any, v_gradient: Any, x_gradient: Any, whole: bool, v: Any, x: Any
) -> None:
    """Rows v of the table, and with `whole` x, moved by `uphill` times their gradient."""
    product, last = np.uint64(v.shape[1]), len(places) - 1
    for i in range(len(places)):
        row = places[i]
        fetch_row(table, places[min(i + _AHEAD, last)])
        for k in range(v.shape[1]):
            v[i, k] = table[row, k]
        if whole:
            for k in range(x.shape[1]):
                x[i, k] = table[row, product + np.uint64(k)]
        if uphill > 0:
            for k in range(v.shape[1]):
                v[i, k] += uphill * v_gradient[i, k]
            for k in range(x.shape[1]):
                x[i, k] += uphill * x_gradient[i, k]


@jit
def _activate(values: Any, bias: Any) -> None:
    """relu(values + bias)"""
    zero = np.float32(0.0)
    for i in range(len(values)):
        for k in range(len(bias)):
            values[i, k] = max(values[i, k] + bias[k], zero)


@jit
def _enter(known: Any, items: Any, units: Any, offset: Any, out: Any) -> None:
    """relu(x W_0 + offset) of items whose x W_0 is known, of these units of the first layer."""
    zero, last = np.float32(0.0), len(items) - 1
    for i in range(len(items)):
        item = items[i]
        fetch_row(known, items[min(i + _AHEAD, last)])
        for k in range(len(units)):
            out[i, k] = max(known[item, units[k]] + offset[k], zero)


@jit
def offset_of(weights: Any, bias: Any, user: Any, out: Any) -> None:
    """What the user brings to the first layer: q U + b_0."""
    dim = len(weights)
    first = len(user) - dim
    copy(bias, out)
    for j in range(dim):
        value = user[first + j]
        for k in range(len(out)):
            out[k] += value * weights[j, k]


@jit
def _forward(first: Any, weights: Any, biases: Any, hidden: Any) -> None:
    """From the first layer's outputs through the others; units of it beyond these are not active."""
    n = len(first)
    for layer in range(1, len(hidden)):
        if layer == 1:
            multiply(first, weights[layer][: first.shape[1]], hidden[layer][:n])
        else:
            multiply(hidden[layer - 1][:n], weights[layer], hidden[layer][:n])
        _activate(hidden[layer][:n], biases[layer])


@jit
def _logits(top: Any, user: Any, v: Any, places: Any, t: Any, pair: Any, out: Any) -> None:
    """h . [p * v, t] + b, of rows of t and those of v at these places."""
    product = len(pair)
    rest = top[product:]
    for k in range(product):
        pair[k] = top[k] * user[k]
    for i in range(len(places)):
        z, place = top[len(top) - 1], places[i]
        for k in range(product):
            z += pair[k] * v[place, k]
        for k in range(t.shape[1]):
            z += rest[k] * t[i, k]
        out[i] = z


@jit
def _first(tile: Any, n: int, net: Any) -> None:
    """The first n rows of a tile through the first layer."""
    multiply(tile.x[:n], net.weights[0], tile.hidden[0][:n])
    _activate(tile.hidden[0][:n], tile.offset)


@jit
def _rise(tile: Any, n: int, net: Any, user: Any, out: Any) -> None:
    """The first n rows of a tile, of which hidden[0] has the outputs, through the other layers; their logits into
    `out`."""
    _forward(tile.hidden[0][:n], net.weights, net.biases, tile.hidden)
    _logits(net.top, user, tile.v[:n], tile.places[:n], tile.hidden[len(tile.hidden) - 1], tile.pair, out)


@jit
def _errors(sides: Any, weight: Any, told: bool, error: Any) -> Any:
    """From z of each row to weight (sigma(z) - y); returns their part of the loss, if it is to be `told`."""
    loss, zero = 0.0, np.float32(0.0)
    for i in range(len(error)):
        error[i] *= sides[i]
    if told:
        for i in range(len(error)):
            loss += weight[i] * (max(error[i], zero) + log1p(exp(-abs(error[i]))))
    for i in range(len(error)):
        error[i] = weight[i] * sides[i] * sigmoid(error[i], exp(-abs(error[i])))
    return loss


@jit
def _mix(error: Any, v: Any, mix: Any) -> None:
    """Add up errors times v."""
    for i in range(len(error)):
        for k in range(len(mix)):
            mix[k] += error[i] * v[i, k]


@jit
def _fall_to_rows(pair: Any, error: Any, v_gradient: Any) -> None:
    """From the errors to the rows v."""
    for i in range(len(v_gradient)):
        for k in range(len(pair)):
            v_gradient[i, k] = error[i] * pair[k]


@jit
def _fall_to_top(error: Any, t: Any, slope: Any) -> None:
    """From the errors to the part of h that t meets, and to b."""
    last = t.shape[1]
    for i in range(len(t)):
        scale = error[i]
        for k in range(last):
            slope[k] += scale * t[i, k]
        slope[last] += scale


@jit
def _tile(
    tile: Any, batch: Any, table: Any, places: Any, net: Any, user: Any, uphill: Any, gradient: Any, known: Any,
    wanted: Any, told: bool, start: int, stop: int,
) -> Any:  # fmt: skip
    """Forward with rows start .. stop of the batch, which join their patterns; returns their part of the loss."""
    n, last = stop - start, len(tile.hidden) - 1
    v_gradient, x_gradient = batch.v[start:stop], batch.x[start:stop]
    v, x, t = tile.v[:n], tile.x[:n], tile.hidden[last][:n]
    _gather(table, places[start:stop], uphill, v_gradient, x_gradient, wanted.layers or not len(known), v, x)
    if len(known):
        _enter(known, batch.items[start:stop], tile.units, tile.offset, tile.hidden[0])
    else:
        _first(tile, n, net)
    _rise(tile, n, net, user, tile.error)
    loss = _errors(batch.sides[start:stop], batch.weight[start:stop], told, tile.error[:n])
    _mix(tile.error[:n], v, tile.mix)
    if wanted.rows:
        _fall_to_rows(tile.pair, tile.error, v_gradient)
    if wanted.layers:
        _fall_to_top(tile.error, t, gradient.top[v.shape[1] :])
    h = net.top[v.shape[1] : len(net.top) - 1]
    take_in(batch.patterns, x, tile.hidden, tile.error[:n], h, net.turned, wanted, tile.pull, x_gradient)
    return loss


@jit
def gradient_of(
    tile: Any, batch: Any, count: int, table: Any, places: Any, net: Any, user: Any, uphill: Any, known: Any,
    wanted: Any, told: bool, gradient: Any, slope: Any,
) -> Any:  # fmt: skip
    """The gradient of the loss of a batch of `count` rows, of what is `wanted`: of rows into the batch, of layers into
    `gradient`, of p and q into `slope`; returns the loss if it is to be `told`. Rows are those of the table at these
    places, moved by `uphill` times the gradient that they have; where `known` has rows they are x W_0 of all items."""
    dim, product, patterns, loss = tile.x.shape[1], tile.v.shape[1], batch.patterns, 0.0
    if wanted.layers:
        gradient.flat.fill(0)
    tile.pull.fill(0)
    tile.mix.fill(0)
    forget(patterns)
    offset_of(net.user, net.biases[0], user, tile.offset)
    size = even(count, len(tile.error))
    for start in range(0, count, size):
        stop = min(count, start + size)
        if patterns.count[0] + stop - start > len(patterns.error):  # no space for them
            add_up(patterns, len(tile.error), wanted.layers, gradient.weights, gradient.biases, tile.pull)
            forget(patterns)
        loss += _tile(tile, batch, table, places, net, user, uphill, gradient, known, wanted, told, start, stop)
    add_up(patterns, len(tile.error), wanted.layers, gradient.weights, gradient.biases, tile.pull)
    if wanted.layers:
        for k in range(product):
            gradient.top[k] = user[k] * tile.mix[k]
        copy(tile.pull, gradient.biases[0])
        for j in range(dim):
            for k in range(len(tile.pull)):
                gradient.user[j, k] = user[product + j] * tile.pull[k]
    if wanted.user:
        for k in range(product):
            slope[k] = net.top[k] * tile.mix[k]
        for j in range(dim):
            value = np.float32(0.0)
            for k in range(len(tile.pull)):
                value += net.user[j, k] * tile.pull[k]
            slope[product + j] = value
    return loss


@jit
def predict(tile: Any, table: Any, places: Any, net: Any, user: Any, tops: Any, out: Any) -> None:
    """Rows of a table at these places forward: t into `tops`, logits into `out`."""
    last, size = len(tile.hidden) - 1, even(len(places), len(tile.error))
    offset_of(net.user, net.biases[0], user, tile.offset)
    for start in range(0, len(places), size):
        some = places[start : start + size]
        n = len(some)
        _gather(table, some, np.float32(0.0), tile.v, tile.x, True, tile.v, tile.x)
        _first(tile, n, net)
        _rise(tile, n, net, user, out[start:])
        look_up(tile.hidden[last], tile.places[:n], tops[start:])


@jit
def _gather_own(slot_of: Any, table: Any, shared: Any, items: Any, v: Any, x: Any) -> None:
    """Rows of items: from the device's table if it has them there, else the server's."""
    for i in range(len(items)):
        item, slot, product = items[i], slot_of[items[i]], v.shape[1]
        row = table[slot] if 0 <= slot < len(table) else shared[item]
        rest = row[product:]
        for k in range(product):
            v[i, k] = row[k]
        for k in range(x.shape[1]):
            x[i, k] = rest[k]


@jit
def score_own(tile: Any, slot_of: Any, table: Any, shared: Any, items: Any, net: Any, user: Any, out: Any) -> None:
    """Scores of items with the device's own rows, or the server's of those that it has not, by its own network."""
    size = even(len(items), len(tile.error))
    offset_of(net.user, net.biases[0], user, tile.offset)
    for start in range(0, len(items), size):
        some = items[start : start + size]
        n = len(some)
        _gather_own(slot_of, table, shared, some, tile.v, tile.x)
        _first(tile, n, net)
        _rise(tile, n, net, user, out[start:])


class Items(NamedTuple):
    """What the network takes of the items that are asked for."""

    products: Any
    """[M, width] x W_0."""
    v: Any
    """[M, product]"""


class Users(NamedTuple):
    """What the network takes of the users who ask."""

    values: Any
    """[C, product] p."""
    offsets: Any
    """[C, width] what they bring to the first layer."""
    widths: Any
    """[C] how many units of the first layer, counted from its first, can be active."""
    ask: Any
    """[C, K] places of the items that each asks for."""


@kernel
def network_scores(parts: Any, net: Any, tile: Any, items: Any, users: Any, scores: Any) -> None:
    """Scores [C, K] with the server's rows, of one thread's users."""
    ask = users.ask
    size, last = even(ask.shape[1], len(tile.error)), len(tile.hidden) - 1
    buffer = tile.hidden[0].reshape(-1)
    part = count_on(parts.next)
    while part < len(parts.ptr) - 1:
        for index in range(parts.ptr[part], parts.ptr[part + 1]):
            width = users.widths[index]
            for start in range(0, ask.shape[1], size):
                asked = ask[index, start : start + size]
                n = len(asked)
                lowest = buffer[: n * width].reshape(n, width)
                look_up(items.products, asked, lowest)
                _activate(lowest, users.offsets[index, :width])
                _forward(lowest, net.weights, net.biases, tile.hidden)
                t = tile.hidden[last][:n] if last > 0 else lowest
                _logits(net.top, users.values[index], items.v, asked, t, tile.pair, scores[index, start:])
        part = count_on(parts.next)


@jit
def load_layers(layers: Any, user: int, out: Any) -> None:
    """A user's own layers, or p and q, as one vector."""
    start = 0
    for layer in range(len(layers)):
        values = layers[layer][user]
        copy(values, out[start : start + len(values)])
        start += len(values)


@kernel
def personal_scores(
    parts: Any, net: Any, tile: Any, nowhere: Any, rows: Any, values: Any, layers: Any, request: Any
) -> None:  # fmt: skip
    """Scores with the server's rows, of one thread's users, each by layers of its own. `nowhere`: a 0 for each item."""
    part = count_on(parts.next)
    while part < len(parts.ptr) - 1:
        for index in range(parts.ptr[part], parts.ptr[part + 1]):
            load_layers(layers, request.users[index], net.flat)
            score_own(tile, nowhere, rows[:0], rows, request.ask[index], net, values[index], request.scores[index])
        part = count_on(parts.next)
