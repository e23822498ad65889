"""A network that scores items, forward and back, for the kernels: NeuMF and, without its product, NCF.

    z_ij = h . [p_i * v_j, t_ij] + b,      t_ij = relu(... relu(q_i U + x_j W_0 + b_0) W_1 + b_1 ...)

Rows go through the layers a tile at a time, forward and back. Matrix products are SciPy's BLAS, which numba calls.
Inner loops count from 0 over slices: an index that might be negative, for all the compiler knows, would keep them from
the wide registers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from federec.kernels.cpu import jit, kernel

_PRODUCTS = 1_000_000  # in one multiplication: up to that OpenBLAS takes matrices as they lie, near the machine's limit
_MOST, _LEAST = 256, 8  # rows in a tile
_FIRST = np.int64(0)  # typed: a plain 0 would have functions compiled for it alone


class Shape(NamedTuple):
    """Widths of the network."""

    product: int
    """Of p and v; 0: there is no product."""
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


class Batch(NamedTuple):
    """The rows of a step."""

    rows: Any
    items: Any
    sides: Any
    weight: Any
    v: Any
    x: Any
    """Gradients of v and x."""


class Tile(NamedTuple):
    """Some rows on their way through the layers."""

    v: Any
    x: Any
    hidden: tuple[Any, ...]
    """Outputs of each layer."""
    back: tuple[Any, ...]
    """The gradient there."""
    error: Any
    turned: tuple[Any, ...]
    """W transposed, which multiplies faster."""
    part: tuple[Any, ...]
    """The tile's part of the gradient of W."""
    share: Any
    """What the user brings to the first layer."""
    pull: Any
    mix: Any
    square: Any
    """Sums over all rows: of the gradient at the first layer, of error times v, of squares of the rows' gradient."""


def make_net(shape: Shape) -> Net:
    """Layers all 0, in the order that `cohort.layers.mlp_params` declares them."""
    inputs = (shape.dim, *shape.hidden[:-1])
    sizes = [shape.dim * shape.hidden[0]]
    for i, o in zip(inputs, shape.hidden, strict=True):
        sizes += [i * o, o]
    flat = floats(sum(sizes) + shape.product + shape.hidden[-1] + 1)
    user, *layers, top = np.split(flat, np.cumsum(sizes))
    weights = tuple(w.reshape(i, o) for w, i, o in zip(layers[::2], inputs, shape.hidden, strict=True))
    return Net(flat, user.reshape(shape.dim, -1), weights, tuple(layers[1::2]), top)


def make_tile(shape: Shape, first: int = 0) -> Tile:
    """Room for as many rows as go well through the layers from `first` on."""
    weights = make_net(shape).weights
    largest = max((w.size for w in weights[first:]), default=1)
    rows = min(max(_PRODUCTS // largest, _LEAST), _MOST)
    return Tile(
        floats(rows, shape.product),
        floats(rows, shape.dim),
        tuple(floats(rows, size) for size in shape.hidden),
        tuple(floats(rows, size) for size in shape.hidden),
        floats(rows),
        tuple(floats(*w.T.shape) for w in weights),
        weights,
        floats(shape.hidden[0]),
        floats(shape.hidden[0]),
        floats(shape.product),
        floats(1),
    )


def floats(*sizes: int) -> Any:
    return np.zeros(sizes, np.float32)


@jit
def copy(values: Any, out: Any) -> None:
    for k in range(len(out)):
        out[k] = values[k]


@jit
def square(values: Any) -> Any:
    total = np.float32(0.0)
    for k in range(len(values)):
        total += values[k] * values[k]
    return total


@jit
def _add(part: Any, total: Any) -> None:
    for j in range(part.shape[0]):
        for k in range(part.shape[1]):
            total[j, k] += part[j, k]


@jit
def _add_rows(rows: Any, total: Any) -> None:
    for i in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            total[k] += rows[i, k]


@jit
def _turn(weights: Any, out: Any) -> None:
    for j in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[j, k] = weights[k, j]


@jit
def _look_up(table: Any, rows: Any, out: Any) -> None:
    for i in range(len(rows)):
        row = rows[i]
        for k in range(table.shape[1]):
            out[i, k] = table[row, k]


@jit
def _gather(table: Any, places: Any, first: int, uphill: Any, gradient: Any, out: Any) -> None:
    """Rows of the table from column `first` on, moved by so much of their gradient."""
    for i in range(len(places)):
        row = table[places[i], first:]
        for k in range(out.shape[1]):
            out[i, k] = row[k]
        if uphill > 0:
            for k in range(out.shape[1]):
                out[i, k] += uphill * gradient[i, k]


@jit
def _activate(values: Any, bias: Any) -> None:
    """relu(values + bias)"""
    zero = np.float32(0.0)
    for i in range(len(values)):
        for k in range(len(bias)):
            values[i, k] = max(values[i, k] + bias[k], zero)


@jit
def _gate(back: Any, hidden: Any) -> None:
    """A unit that was not active passes nothing back."""
    zero = np.float32(0.0)
    for i in range(back.shape[0]):
        for k in range(back.shape[1]):
            back[i, k] = back[i, k] if hidden[i, k] > zero else zero


@jit
def _share(weights: Any, bias: Any, user: Any, out: Any) -> None:
    """What the user brings to the first layer: q U + b_0."""
    dim = len(weights)
    first = len(user) - dim
    copy(bias, out)
    for j in range(dim):
        value = user[first + j]
        for k in range(len(out)):
            out[k] += value * weights[j, k]


@jit
def _forward(weights: Any, biases: Any, share: Any, hidden: Any, n: int) -> None:
    """Through the layers; `hidden[0]` holds x W_0."""
    _activate(hidden[0][:n], share)
    for layer in range(1, len(hidden)):
        np.dot(hidden[layer - 1][:n], weights[layer], hidden[layer][:n])
        _activate(hidden[layer][:n], biases[layer])


@jit
def _even(count: int, most: int) -> int:
    """The size of parts, about the same for all, of at most so many."""
    parts = max(1, (count + most - 1) // most)
    return max(1, (count + parts - 1) // parts)


@jit
def _logit(top: Any, user: Any, v: Any, t: Any, row: int, i: int) -> Any:
    """h . [p * v, t] + b, of row `row` of v and row i of t."""
    product = v.shape[1]
    z, rest = top[len(top) - 1], top[product:]
    for k in range(product):
        z += top[k] * user[k] * v[row, k]
    for k in range(t.shape[1]):
        z += rest[k] * t[i, k]
    return z


@jit
def _errors(top: Any, user: Any, v: Any, t: Any, sides: Any, weight: Any, error: Any) -> Any:
    """weight (sigma(z) - y) of each row; returns their part of the loss."""
    loss, one = 0.0, np.float32(1.0)
    for i in range(len(t)):
        wrong = sides[i] * _logit(top, user, v, t, i, i)
        ratio = math.exp(-abs(wrong))
        large = one / (one + ratio)
        error[i] = weight[i] * sides[i] * (large if wrong > 0 else ratio * large)
        loss += weight[i] * (max(wrong, np.float32(0.0)) + math.log1p(ratio))
    return loss


@jit
def _fall(top: Any, v: Any, error: Any, t: Any, mix: Any, back: Any) -> None:
    """From the errors to the last hidden layer."""
    product = v.shape[1]
    rest = top[product:]
    for i in range(len(back)):
        scale = error[i]
        for k in range(product):
            mix[k] += scale * v[i, k]
        for k in range(back.shape[1]):
            back[i, k] = scale * rest[k]
    _gate(back, t)


@jit
def _fall_shared(top: Any, user: Any, error: Any, t: Any, v_gradient: Any, slope: Any) -> None:
    """From the errors to h, b and the rows v."""
    product = v_gradient.shape[1]
    rest = slope[product:]
    for i in range(len(t)):
        scale = error[i]
        for k in range(product):
            v_gradient[i, k] = scale * top[k] * user[k]
        for k in range(t.shape[1]):
            rest[k] += scale * t[i, k]
        slope[len(slope) - 1] += scale


@jit
def _backward(tile: Any, weights: Any, biases: Any, shared: bool, n: int) -> None:
    """From the last hidden layer to the first, and with `shared` to W and b between them."""
    hidden, back = tile.hidden, tile.back
    for layer in range(len(hidden) - 1, 0, -1):
        if shared:
            np.dot(hidden[layer - 1][:n].T, back[layer][:n], tile.part[layer])
            _add(tile.part[layer], weights[layer])
            _add_rows(back[layer][:n], biases[layer])
        np.dot(back[layer][:n], tile.turned[layer], back[layer - 1][:n])
        _gate(back[layer - 1][:n], hidden[layer - 1][:n])
    _add_rows(back[0][:n], tile.pull)


@jit
def _tile(
    tile: Any, batch: Any, table: Any, places: Any, net: Any, user: Any, uphill: Any, gradient: Any, known: Any,
    shared: bool, start: int, stop: int,
) -> Any:  # fmt: skip
    """Forward and back with rows start .. stop of the batch; returns their part of the loss."""
    n, last = stop - start, len(tile.hidden) - 1
    v_gradient, x_gradient = batch.v[start:stop], batch.x[start:stop]
    v, x, t, back = tile.v[:n], tile.x[:n], tile.hidden[last][:n], tile.back[0][:n]
    _gather(table, places[start:stop], _FIRST, uphill, v_gradient, v)
    if shared or not len(known):
        _gather(table, places[start:stop], v.shape[1], uphill, x_gradient, x)
    if len(known):
        _look_up(known, batch.items[start:stop], tile.hidden[0])
    else:
        np.dot(x, net.weights[0], tile.hidden[0][:n])
    _forward(net.weights, net.biases, tile.share, tile.hidden, n)
    loss = _errors(net.top, user, v, t, batch.sides[start:stop], batch.weight[start:stop], tile.error)
    _fall(net.top, v, tile.error, t, tile.mix, tile.back[last][:n])
    if shared:
        _fall_shared(net.top, user, tile.error, t, v_gradient, gradient.top)
    _backward(tile, gradient.weights, gradient.biases, shared, n)
    if shared:
        np.dot(x.T, back, tile.part[0])
        _add(tile.part[0], gradient.weights[0])
        np.dot(back, tile.turned[0], x_gradient)
        tile.square[0] += square(v_gradient.ravel()) + square(x_gradient.ravel())
    return loss


@jit
def gradient_of(
    tile: Any, batch: Any, count: int, table: Any, places: Any, net: Any, user: Any, uphill: Any, known: Any,
    shared: bool, gradient: Any, private: bool, slope: Any,
) -> Any:  # fmt: skip
    """The gradient of the loss of a batch of `count` rows: of what is `shared` into `gradient` and the batch, of what
    is `private` into `slope`; returns the loss. Rows are those of the table at these places, moved by `uphill` times
    the gradient that they have; where `known` has rows they are x W_0 of all items."""
    dim, product, loss = tile.x.shape[1], tile.v.shape[1], 0.0
    if shared:
        gradient.flat.fill(0)
    tile.pull.fill(0)
    tile.mix.fill(0)
    tile.square.fill(0)
    for layer in range(len(tile.turned)):
        _turn(net.weights[layer], tile.turned[layer])
    _share(net.user, net.biases[0], user, tile.share)
    size = _even(count, len(tile.error))
    for start in range(0, count, size):
        stop = min(count, start + size)
        loss += _tile(tile, batch, table, places, net, user, uphill, gradient, known, shared, start, stop)
    if shared:
        for k in range(product):
            gradient.top[k] = user[k] * tile.mix[k]
        copy(tile.pull, gradient.biases[0])
        for j in range(dim):
            for k in range(len(tile.pull)):
                gradient.user[j, k] = user[product + j] * tile.pull[k]
    if private:
        for k in range(product):
            slope[k] = net.top[k] * tile.mix[k]
        for j in range(dim):
            value = np.float32(0.0)
            for k in range(len(tile.pull)):
                value += net.user[j, k] * tile.pull[k]
            slope[product + j] = value
    return loss


@kernel
def network_scores(
    first: int, every: int, net: Any, known: Any, v: Any, tile: Any, own: Any, ask: Any, scores: Any
) -> None:
    """Scores of the items `ask` [users, K]; `known` [M, w] is x W_0 and v [M, .] the other part of the server's rows,
    `own` the users' [p, q]; one thread's share."""
    size, t = _even(ask.shape[1], len(tile.error)), tile.hidden[len(tile.hidden) - 1]
    for index in range(first, len(ask), every):
        user = own[index]
        _share(net.user, net.biases[0], user, tile.share)
        for start in range(0, ask.shape[1], size):
            items = ask[index, start : start + size]
            _look_up(known, items, tile.hidden[0])
            _forward(net.weights, net.biases, tile.share, tile.hidden, len(items))
            for i in range(len(items)):
                scores[index, start + i] = _logit(net.top, user, v, t, items[i], i)
