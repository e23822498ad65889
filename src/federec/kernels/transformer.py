"""A transformer over windows of items, forward and back, for the kernels: what `mathematics.transformer` and
`mathematics.windows` do in torch, with the same values dropped.

The rows of some windows, one after the other and without padding, go through the network together. Products are taken
a few rows at a time, and those with item rows for a block of items at a time: OpenBLAS then takes matrices as they lie,
near the machine's limit. Logits of all items are held for a few rows, the fewer the more items there are.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from federec.kernels.compiling import inlined, jit, kernel
from federec.kernels.cpu import bits, copy, exp, floats, log
from federec.kernels.lanes import LINE, larger, largest, plus, read, write
from federec.kernels.matrices import add_product, multiply

ITEMS = 192
"""Items whose logits are taken together."""
SPAN = 64
"""Rows of attention weights are filled up to a multiple of this: a compiled loop takes so many numbers a turn, and what
is left of a row goes through slower code."""
NEVER = np.float32(-1e30)
"""The bias of places in the last block that are no items, and the weight of keys that a query does not see."""
_PRODUCTS = 1_000_000  # in one multiplication
_ROWS = 64  # whose logits, or queries whose weights, are held at a time
_LOGITS = 1 << 20  # held at a time, but of eight rows at least
_TINY = np.float32(np.finfo(np.float32).tiny)
_EPSILON = np.float32(1e-5)  # of a norm


class Shape(NamedTuple):
    """Sizes of the network, and what is dropped."""

    heads: int
    window: int
    level: np.int16
    """A value stays if its 16 random bits are at least this number."""
    scale: np.float32
    """Factor of the values that stay."""


class Weights(NamedTuple):
    """All parameters, or sums of their gradients, layers stacked. Norms have no parameters of their own: their scale
    and shift are part of the weights and biases of what comes next."""

    rows: Any
    """[items, dim], that histories are made of."""
    places: Any
    items: Any
    item_bias: Any
    """[blocks * ITEMS, dim] rows and their biases that scores are made of, the last norm's scale and shift in them. In
    the last block rows of zeros follow, with the bias `NEVER`."""
    attend: Any
    """[layers, 3 dim, dim] to queries, keys and values."""
    attend_bias: Any
    mix: Any
    mix_bias: Any
    widen: Any
    widen_bias: Any
    narrow: Any
    narrow_bias: Any


class Transposed(NamedTuple):
    """Weights transposed, which multiply faster."""

    items: Any
    """[blocks, dim, ITEMS]; without blocks where there is nothing to learn."""
    attend: Any
    mix: Any
    widen: Any
    narrow: Any


class Learned(NamedTuple):
    """The windows to learn from: `mathematics.windows.Windows`, and the key of each one's random numbers."""

    items: Any
    targets: Any
    counts: Any
    first: Any
    keys: Any


class Layer(NamedTuple):
    """What a layer keeps of the rows at hand for the way back, [layers, rows, width]."""

    hat: Any
    spread: Any
    """The norm before attention, and [layers, rows] 1 / standard deviation."""
    three: Any
    """Queries, keys and values, side by side."""
    weights: Any
    kept: Any
    """[layers, heads, values] of attention, and what dropout left of them; whole spans for each query."""
    mixed: Any
    second_hat: Any
    second_spread: Any
    active: Any
    slope: Any
    """What the GELU gives, and its derivative; both where nothing was dropped."""
    masks: Any
    """[layers, rows, 2 dim] factors of dropout after attention, and after hidden layers."""


class Workspace(NamedTuple):
    """Memory of one thread."""

    layer: Layer
    begin: Any
    """Where the rows of each window begin."""
    owner: Any
    step: Any
    """Of each row: its window, and its place there."""
    key: Any
    position: Any
    """Of each row, for random numbers: its history's key, and its place in the history."""
    h: Any
    hat: Any
    spread: Any
    """The last norm. On the way back `hat` is also the gradient of what heads make of values."""
    masks: Any
    """Factors of dropout of the embedding."""
    down: Any
    """The gradient on its way back, of h."""
    wide: Any
    narrow: Any
    three: Any
    """Scratch memory: [rows, 4 dim], [rows, dim] and [rows, 3 dim]."""
    square: Any
    """A block of queries and their keys."""
    table: Any
    """Logits of some rows."""
    words: Any
    lanes: Any
    """Random bits, 16 in a number."""
    factors: Any
    active: Any
    """Of one row."""


def make_workspace(layers: int, heads: int, window: int, dim: int, blocks: int) -> Workspace:
    """For windows of this length at most, and so many blocks of items."""
    logits = min(_ROWS, max(8, _LOGITS // max(1, blocks * ITEMS) // 8 * 8))
    rows, square = max(window, 2 * _ROWS), -(-window // SPAN) * SPAN
    words = np.zeros(-(-max(6 * dim, square) // 4), np.uint64)
    layer = Layer(
        hat=floats(layers, rows, dim),
        spread=floats(layers, rows),
        three=floats(layers, rows, 3 * dim),
        weights=floats(layers, heads, rows * square),
        kept=floats(layers, heads, rows * square),
        mixed=floats(layers, rows, dim),
        second_hat=floats(layers, rows, dim),
        second_spread=floats(layers, rows),
        active=floats(layers, rows, 4 * dim),
        slope=floats(layers, rows, 4 * dim),
        masks=floats(layers, rows, 2 * dim),
    )
    return Workspace(
        layer=layer,
        begin=np.zeros(rows + 1, np.int64),
        owner=np.zeros(rows, np.int64),
        step=np.zeros(rows, np.int64),
        key=np.zeros(rows, np.uint64),
        position=np.zeros(rows, np.uint64),
        h=floats(rows, dim),
        hat=floats(rows, dim),
        spread=floats(rows),
        masks=floats(rows, dim),
        down=floats(rows, dim),
        wide=floats(rows, 4 * dim),
        narrow=floats(rows, dim),
        three=floats(rows, 3 * dim),
        square=floats(_ROWS * square),
        table=floats(logits, blocks * ITEMS),
        words=words,
        lanes=words.view(np.int16),
        factors=floats(4 * len(words)),
        active=floats(4 * dim),
    )


@jit
def _spans(count: int) -> int:
    """So many numbers, filled up to whole spans."""
    return (count + SPAN - 1) // SPAN * SPAN


@jit
def _tile(width: int, depth: int, most: int) -> int:
    """Rows of a product with a matrix of this size that OpenBLAS takes as they lie."""
    return int(max(8, min(most, _PRODUCTS // (width * depth) // 8 * 8)))


@jit
def _times(x: Any, weight: Any, out: Any) -> None:
    """x W."""
    step = _tile(weight.shape[0], weight.shape[1], len(x))
    for start in range(0, len(x), step):
        stop = min(len(x), start + step)
        multiply(x[start:stop], weight, out[start:stop])


@jit
def _add_outer(down: Any, x: Any, total: Any) -> None:
    """Add the sum of d_i x_i' over all rows."""
    step = _tile(total.shape[0], total.shape[1], len(x))
    for start in range(0, len(x), step):
        stop = min(len(x), start + step)
        add_product(down[start:stop].T, x[start:stop], total)


@jit
def _drop(key: Any, draw: Any, level: Any, scale: Any, out: Any, words: Any, lanes: Any) -> None:
    """Factors of dropout of a row's values at a place of the network: `Dropout.masks`."""
    for word in range((len(out) + 3) // 4):
        words[word] = bits(key, draw + np.uint64(word))
    for k in range(len(out)):
        out[k] = scale if lanes[k] >= level else np.float32(0.0)


@inlined
def _factors(shape: Any, work: Any, row: int, most: int, site: int, out: Any) -> None:
    """The same for a place where rows have up to `most` values."""
    if shape.scale == np.float32(1.0):
        out.fill(1)
    else:
        draw = work.position[row] * np.uint64((most + 3) // 4) + (np.uint64(site) << np.uint64(32))
        _drop(work.key[row], draw, shape.level, shape.scale, out, work.words, work.lanes)


@jit
def _norm(h: Any, hat: Any, spread: Any) -> None:
    dim = h.shape[1]
    for i in range(len(h)):
        mean, variance = np.float32(0.0), np.float32(0.0)
        for k in range(dim):
            mean += h[i, k]
        mean /= np.float32(dim)
        for k in range(dim):
            variance += (h[i, k] - mean) * (h[i, k] - mean)
        spread[i] = np.float32(1.0) / np.float32(math.sqrt(variance / np.float32(dim) + _EPSILON))
        for k in range(dim):
            hat[i, k] = (h[i, k] - mean) * spread[i]


@jit
def _norm_back(above: Any, hat: Any, spread: Any, down: Any) -> None:
    """Add the gradient of what was normed to `down`."""
    dim = above.shape[1]
    for i in range(len(above)):
        mean, along = np.float32(0.0), np.float32(0.0)
        for k in range(dim):
            mean += above[i, k]
            along += above[i, k] * hat[i, k]
        mean /= np.float32(dim)
        along /= np.float32(dim)
        for k in range(dim):
            down[i, k] += spread[i] * (above[i, k] - mean - hat[i, k] * along)


@jit
def _gelu(bias: Any, active: Any, slope: Any, given: Any) -> None:
    """From x, in `slope`, and factors of dropout, in `active`: x P(x) with the normal distribution P, and its
    derivative P(x) + x p(x), times the factors. Of P = 1 - p poly(1 / (1 + 0.23 |x|)) (Abramowitz and Stegun 7.1.26)
    and p the exponential is the same. Each loop has few arrays, or the compiler would not take many numbers at once."""
    zero, one, half = np.float32(0.0), np.float32(1.0), np.float32(0.5)
    for i in range(len(active)):
        for k in range(len(bias)):
            slope[i, k] += bias[k]
        for k in range(len(bias)):
            x = slope[i, k]
            e = exp(-half * x * x)
            t = one / (one + np.float32(0.3275911 * 0.7071067811865476) * abs(x))
            p = np.float32(1.061405429) * t + np.float32(-1.453152027)
            p = (p * t + np.float32(1.421413741)) * t + np.float32(-0.284496736)
            tail = half * (p * t + np.float32(0.254829592)) * t * e
            below = one - tail if x > zero else tail
            given[k] = x * below
            slope[i, k] = below + x * np.float32(0.3989422804014327) * e
        for k in range(len(bias)):
            slope[i, k] *= active[i, k]
        for k in range(len(bias)):
            active[i, k] *= given[k]


@jit
def _block(each: int, window: int) -> int:
    """Queries whose weights are taken together."""
    return int(_tile(each, window, _ROWS))


@jit
def _soften(weights: Any, before: int, scale: Any) -> None:
    """Softmax over the keys that each query of a block sees: those up to its own, the first one `before` + 1."""
    for i in range(len(weights)):
        row, seen, total = weights[i], before + i + 1, np.float32(0.0)
        row[seen:].fill(NEVER)
        top = read(weights, i, 0)
        for k in range(LINE, len(row), LINE):
            top = larger(top, read(weights, i, k))
        most = largest(top)
        for k in range(len(row)):
            row[k] = exp((row[k] - most) * scale)
            total += row[k]
        total = np.float32(1.0) / total
        for k in range(len(row)):
            row[k] *= total
        row[seen:].fill(0)


@jit
def _mix(shape: Any, windows: int, number: int, newest: bool, work: Any) -> None:
    """Attention of a layer, head by head, into `mixed`; of the newest row of each window only, if asked."""
    layer, begin, dim = work.layer, work.begin, work.h.shape[1]
    each = dim // shape.heads
    step, scale = _block(each, shape.window), np.float32(1.0 / math.sqrt(each))
    three, mixed, place = layer.three[number], layer.mixed[number], 0
    for at in range(windows):
        start, stop = begin[at], begin[at + 1]
        for block in range(stop - 1 if newest else start, stop, step):
            end = min(stop, block + step)
            size, seen = end - block, end - start
            wide = _spans(seen)
            for head in range(shape.heads):
                own = slice(head * each, (head + 1) * each)
                weights = layer.weights[number, head, place : place + size * wide].reshape(size, wide)
                kept = layer.kept[number, head, place : place + size * wide].reshape(size, wide)
                key = three[start:end, dim + head * each : dim + (head + 1) * each]
                multiply(three[block:end, own], key.T, weights[:, :seen])
                _soften(weights, block - start, scale)
                site = 2 + (1 + shape.heads) * number + head
                for i in range(size):
                    _factors(shape, work, block + i, shape.window, site, work.factors[:wide])
                    for k in range(wide):
                        kept[i, k] = weights[i, k] * work.factors[k]
                value = three[start:end, 2 * dim + head * each : 2 * dim + (head + 1) * each]
                multiply(kept[:, :seen], value, mixed[block:end, own])
            place += size * wide


@jit
def _mix_back(shape: Any, windows: int, n: int, number: int, work: Any) -> None:
    """From the gradient of `mixed`, in `hat`, to that of queries, keys and values, in `three`."""
    layer, begin, dim = work.layer, work.begin, work.h.shape[1]
    each = dim // shape.heads
    step, scale = _block(each, shape.window), np.float32(1.0 / math.sqrt(each))
    three, down, place = layer.three[number], work.three, 0
    for i in range(n):
        down[i, dim:].fill(0)
    for at in range(windows):
        start, stop = begin[at], begin[at + 1]
        for block in range(start, stop, step):
            end = min(stop, block + step)
            size, seen = end - block, end - start
            wide = _spans(seen)
            slope = work.square[: size * wide].reshape(size, wide)
            for head in range(shape.heads):
                query = slice(head * each, (head + 1) * each)
                key = slice(dim + head * each, dim + (head + 1) * each)
                value = slice(2 * dim + head * each, 2 * dim + (head + 1) * each)
                weights = layer.weights[number, head, place : place + size * wide].reshape(size, wide)
                kept = layer.kept[number, head, place : place + size * wide].reshape(size, wide)
                above = work.hat[block:end, query]
                add_product(kept[:, :seen].T, above, down[start:end, value])
                multiply(above, three[start:end, value].T, slope[:, :seen])
                _soften_back(weights, kept, seen, scale, slope)
                multiply(slope[:, :seen], three[start:end, key], down[block:end, query])
                add_product(slope[:, :seen].T, three[block:end, query], down[start:end, key])
            place += size * wide


@jit
def _soften_back(weights: Any, kept: Any, seen: int, scale: Any, slope: Any) -> None:
    """From the gradient of what dropout left of the weights to that of products of queries and keys, in `slope`."""
    for i in range(len(slope)):
        total = np.float32(0.0)
        slope[i, seen:].fill(0)
        for k in range(slope.shape[1]):
            slope[i, k] *= kept[i, k]
            total += slope[i, k]
        for k in range(slope.shape[1]):
            slope[i, k] = (slope[i, k] - weights[i, k] * total) * scale


@jit
def _add_dropped(x: Any, bias: Any, masks: Any, first: int, h: Any) -> None:
    """h += (x + bias) times factors of dropout, columns of `masks` from the first one on."""
    for i in range(len(h)):
        factors = masks[i, first : first + len(bias)]
        for k in range(len(bias)):
            h[i, k] += (x[i, k] + bias[k]) * factors[k]


@jit
def _layer(shape: Any, weights: Any, turned: Any, number: int, windows: int, n: int, work: Any) -> None:
    """One layer at all rows."""
    layer, dim = work.layer, work.h.shape[1]
    _before(weights, turned, number, n, work)
    _mix(shape, windows, number, False, work)
    masks, active, factors = layer.masks[number], layer.active[number], work.factors[: 6 * dim]
    for i in range(n):
        _factors(shape, work, i, 6 * dim, 1 + (1 + shape.heads) * number, factors)
        copy(factors[:dim], masks[i, :dim])
        copy(factors[dim : 5 * dim], active[i])
        copy(factors[5 * dim :], masks[i, dim:])
    _after(weights, turned, number, n, work)


@jit
def _before(weights: Any, turned: Any, number: int, n: int, work: Any) -> None:
    """Queries, keys and values."""
    layer, bias = work.layer, weights.attend_bias[number]
    hat, three = layer.hat[number, :n], layer.three[number, :n]
    _norm(work.h[:n], hat, layer.spread[number])
    _times(hat, turned.attend[number], three)
    for i in range(n):
        for k in range(len(bias)):
            three[i, k] += bias[k]


@jit
def _after(weights: Any, turned: Any, number: int, n: int, work: Any) -> None:
    """What comes after attention, for rows of h and `mixed`."""
    layer, h, narrow, dim = work.layer, work.h[:n], work.narrow, work.h.shape[1]
    hat, masks = layer.second_hat[number, :n], layer.masks[number]
    active, slope = layer.active[number, :n], layer.slope[number]
    _times(layer.mixed[number, :n], turned.mix[number], narrow)
    _add_dropped(narrow, weights.mix_bias[number], masks, 0, h)
    _norm(h, hat, layer.second_spread[number])
    _times(hat, turned.widen[number], slope)
    _gelu(weights.widen_bias[number], active, slope, work.active)
    _times(active, turned.narrow[number], narrow)
    _add_dropped(narrow, weights.narrow_bias[number], masks, dim, h)


@jit
def _layer_back(shape: Any, weights: Any, sums: Any, number: int, windows: int, n: int, work: Any) -> None:
    """The way back: `down`, the gradient of what the layer gives, becomes that of what it takes."""
    layer, down, dim = work.layer, work.down[:n], work.down.shape[1]
    narrow, wide, three, masks = work.narrow[:n], work.wide[:n], work.three[:n], layer.masks[number]
    hat, second = layer.hat[number, :n], layer.second_hat[number, :n]
    _dropped(down, masks, dim, narrow, sums.narrow_bias[number])
    _add_outer(narrow, layer.active[number, :n], sums.narrow[number])
    _times(narrow, weights.narrow[number], wide)
    _scale(wide, layer.slope[number], sums.widen_bias[number])
    _add_outer(wide, second, sums.widen[number])
    _times(wide, weights.widen[number], narrow)
    _norm_back(narrow, second, layer.second_spread[number], down)
    _dropped(down, masks, 0, narrow, sums.mix_bias[number])
    _add_outer(narrow, layer.mixed[number, :n], sums.mix[number])
    _times(narrow, weights.mix[number], work.hat)
    _mix_back(shape, windows, n, number, work)
    to_bias = sums.attend_bias[number]
    for i in range(n):
        for k in range(len(to_bias)):
            to_bias[k] += three[i, k]
    _add_outer(three, hat, sums.attend[number])
    _times(three, weights.attend[number], narrow)
    _norm_back(narrow, hat, layer.spread[number], down)


@jit
def _scale(x: Any, factors: Any, total: Any) -> None:
    """x times factors, also added up over rows."""
    for i in range(len(x)):
        for k in range(len(total)):
            x[i, k] *= factors[i, k]
            total[k] += x[i, k]


@jit
def _dropped(x: Any, masks: Any, first: int, out: Any, total: Any) -> None:
    """The same with columns of `masks` from the first one on, into `out`."""
    for i in range(len(x)):
        factors = masks[i, first : first + len(total)]
        for k in range(len(total)):
            out[i, k] = x[i, k] * factors[k]
            total[k] += out[i, k]


@jit
def _begin(shape: Any, learned: Any, weights: Any, windows: Any, work: Any) -> int:
    """The rows of these windows; returns how many there are. h = (v + place) times factors of dropout."""
    n, dim = 0, work.h.shape[1]
    for at in range(len(windows)):
        window = windows[at]
        work.begin[at] = n
        place = len(weights.places) - learned.counts[window]
        for step in range(learned.counts[window]):
            work.owner[n], work.step[n] = window, step
            if shape.scale != np.float32(1.0):
                work.key[n], work.position[n] = learned.keys[window], np.uint64(learned.first[window] + step)
            _factors(shape, work, n, dim, 0, work.masks[n])
            item = learned.items[window, step]
            for k in range(dim):
                work.h[n, k] = (weights.rows[item, k] + weights.places[place + step, k]) * work.masks[n, k]
            n += 1
    work.begin[len(windows)] = n
    return n


@jit
def _end_of_batch(counts: Any, chosen: Any, start: int, rows: int) -> int:
    """The end of the windows, from `start` on, that go through the network together: so many rows at most, unless a
    single window has more."""
    stop, filled = start, 0
    while stop < len(chosen) and (stop == start or filled + counts[chosen[stop]] <= rows):
        filled += counts[chosen[stop]]
        stop += 1
    return stop


@jit
def _add_bias(table: Any, i: int, bias: Any) -> Any:
    """Add biases to the logits of a row; returns the highest."""
    top = read(bias, 0, 0)
    for k in range(0, table.shape[1], LINE):
        some = plus(read(table, i, k), read(bias, 0, k))
        write(table, i, k, some)
        top = some if k == 0 else larger(top, some)
    return largest(top)


@jit
def _loss(learned: Any, weights: Any, turned: Any, sums: Any, n: int, losses: Any, work: Any) -> None:
    """Cross-entropy of the next items at n rows of `hat`, and its gradient: of `hat` in `narrow`."""
    table, bias, to_bias, dim = work.table, weights.item_bias.reshape(1, -1), sums.item_bias, work.hat.shape[1]
    step = _tile(ITEMS, dim, len(table))
    for start in range(0, n, step):
        stop = min(n, start + step)
        out, onto, size = work.hat[start:stop], work.narrow[start:stop], stop - start
        for block in range(len(turned.items)):
            multiply(out, turned.items[block], table[:size, block * ITEMS : (block + 1) * ITEMS])
        for i in range(size):
            row, most, total = table[i], _add_bias(table, i, bias), np.float32(0.0)
            for k in range(len(row)):
                row[k] = exp(row[k] - most)
                total += row[k]
            total = np.float32(1.0) / total
            owner = work.owner[start + i]
            target = learned.targets[owner, work.step[start + i]]
            chosen = row[target] * total
            losses[owner] -= log(max(chosen, _TINY))
            for k in range(len(row)):
                row[k] *= total
                to_bias[k] += row[k]
            row[target] = chosen - np.float32(1.0)
            to_bias[target] -= np.float32(1.0)
        for i in range(size):
            for k in range(dim):
                onto[i, k] = 0
        for block in range(len(turned.items)):
            some = slice(block * ITEMS, (block + 1) * ITEMS)
            add_product(table[:size, some], weights.items[some], onto)
            add_product(table[:size, some].T, out, sums.items[some])


@kernel
def transformer_gradient(
    chosen: Any, shape: Any, learned: Any, weights: Any, turned: Any, sums: Any, losses: Any, work: Any
) -> None:
    """Add to `sums` the gradients of these windows, and to `losses` [windows] what they lose."""
    start, dim = 0, work.h.shape[1]
    while start < len(chosen):
        stop = _end_of_batch(learned.counts, chosen, start, len(work.h))
        windows = chosen[start:stop]
        n = _begin(shape, learned, weights, windows, work)
        for number in range(len(weights.attend)):
            _layer(shape, weights, turned, number, len(windows), n, work)
        _norm(work.h[:n], work.hat, work.spread)
        _loss(learned, weights, turned, sums, n, losses, work)
        down, narrow = work.down[:n], work.narrow[:n]
        down.fill(0)
        _norm_back(narrow, work.hat, work.spread, down)
        for number in range(len(weights.attend) - 1, -1, -1):
            _layer_back(shape, weights, sums, number, len(windows), n, work)
        for i in range(n):
            window, step = work.owner[i], work.step[i]
            item, place = learned.items[window, step], len(weights.places) - learned.counts[window] + step
            for k in range(dim):
                slope = down[i, k] * work.masks[i, k]
                sums.rows[item, k] += slope
                sums.places[place, k] += slope
        start = stop


@jit
def _last(shape: Any, weights: Any, turned: Any, windows: int, n: int, work: Any) -> None:
    """The last layer at the newest row of each window: these become the first rows of h."""
    number, layer = len(weights.attend) - 1, work.layer
    _before(weights, turned, number, n, work)
    _mix(shape, windows, number, True, work)
    for at in range(windows):
        newest = work.begin[at + 1] - 1
        for k in range(work.h.shape[1]):
            work.h[at, k] = work.h[newest, k]
            layer.mixed[number, at, k] = layer.mixed[number, newest, k]
    layer.masks[number, :windows].fill(1)
    layer.active[number, :windows].fill(1)
    _after(weights, turned, number, windows, work)


@kernel
def transformer_outputs(
    chosen: Any, shape: Any, learned: Any, weights: Any, turned: Any, found: Any, work: Any
) -> None:
    """Into `found` [windows, dim] what the network makes of these windows at their last item, before the last scale and
    shift. Nothing is dropped."""
    start = 0
    while start < len(chosen):
        stop = _end_of_batch(learned.counts, chosen, start, len(work.h))
        windows = chosen[start:stop]
        n = _begin(shape, learned, weights, windows, work)
        for number in range(len(weights.attend) - 1):
            _layer(shape, weights, turned, number, len(windows), n, work)
        _last(shape, weights, turned, len(windows), n, work)
        _norm(work.h[: len(windows)], work.hat, work.spread)
        for at in range(len(windows)):
            for k in range(work.h.shape[1]):
                found[windows[at], k] = work.hat[at, k]
        start = stop
