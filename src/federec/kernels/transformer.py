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

from federec.kernels.compiling import jit, kernel
from federec.kernels.cpu import bits, exp, floats, log
from federec.kernels.matrices import add_product, multiply

ITEMS = 192
"""Items whose logits are taken together; the compiler has loops take 64 at a time."""
NEVER = np.float32(-1e30)
"""The bias of places in the last block that are no items."""
_PRODUCTS = 1_000_000  # in one multiplication
_ROWS = 64  # whose logits, or queries whose weights, are held at a time
_LOGITS = 1 << 20  # held at a time, but of eight rows at least
_TINY = np.float32(np.finfo(np.float32).tiny)
_EPSILON = np.float32(1e-5)  # of a norm


class Shape(NamedTuple):
    """Sizes of the network, and what is dropped."""

    heads: int
    window: int
    level: int
    """A value stays if its 16 random bits are at least this number."""
    scale: np.float32
    """Factor of the values that stay."""


class Weights(NamedTuple):
    """All parameters, or sums of their gradients: layers stacked, for gradients items filled up to blocks, and as in
    `Transformer.params` the scales of norms as differences from 1."""

    items: Any
    item_bias: Any
    places: Any
    scale: Any
    shift: Any
    """Of the last norm."""
    first_scale: Any
    first_shift: Any
    """[layers, dim] of the norms before attention."""
    attend: Any
    """[layers, 3 dim, dim] to queries, keys and values."""
    mix: Any
    mix_bias: Any
    second_scale: Any
    second_shift: Any
    """[layers, dim] of the norms before hidden layers."""
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
    normed: Any
    spread: Any
    """The norm before attention: rows without scale and shift, rows, and [layers, rows] 1 / standard deviation."""
    query: Any
    key: Any
    value: Any
    """[layers, heads, rows, width of a head]"""
    weights: Any
    kept: Any
    """[layers, heads, values] of attention, and what dropout left of them."""
    mixed: Any
    second_hat: Any
    second: Any
    second_spread: Any
    active: Any
    slope: Any
    """What the GELU gives, and its derivative; both where nothing was dropped."""
    masks: Any
    """[layers, rows, 6 dim] factors of dropout."""


class Workspace(NamedTuple):
    """Memory of one thread."""

    layer: Layer
    begin: Any
    """Where the rows of each window begin."""
    owner: Any
    position: Any
    """Of each row: its window, and its place there."""
    h: Any
    hat: Any
    out: Any
    spread: Any
    """The last norm."""
    masks: Any
    """Factors of dropout of the embedding."""
    down: Any
    """The gradient on its way back, of h."""
    wide: Any
    narrow: Any
    three: Any
    """Scratch memory: [rows, 4 dim], [rows, dim] and [rows, 3 dim]."""
    heads: Any
    """[4, heads, rows, width of a head]: what heads make of values, then gradients of it, queries, keys and values."""
    square: Any
    """A block of queries and their keys."""
    table: Any
    """[blocks, rows, ITEMS] logits."""
    top: Any
    """[ITEMS]"""
    words: Any
    lanes: Any
    """Random bits, 16 in a number."""
    factors: Any


def make_workspace(layers: int, heads: int, window: int, dim: int, blocks: int) -> Workspace:
    """For windows of this length at most, and so many blocks of items."""
    logits = min(_ROWS, max(8, _LOGITS // max(1, blocks * ITEMS) // 8 * 8))
    rows, each = max(window, 2 * _ROWS), dim // heads
    words = np.zeros(-(-max(6 * dim, window) // 4), np.uint64)
    layer = Layer(
        hat=floats(layers, rows, dim),
        normed=floats(layers, rows, dim),
        spread=floats(layers, rows),
        query=floats(layers, heads, rows, each),
        key=floats(layers, heads, rows, each),
        value=floats(layers, heads, rows, each),
        weights=floats(layers, heads, rows * window),
        kept=floats(layers, heads, rows * window),
        mixed=floats(layers, rows, dim),
        second_hat=floats(layers, rows, dim),
        second=floats(layers, rows, dim),
        second_spread=floats(layers, rows),
        active=floats(layers, rows, 4 * dim),
        slope=floats(layers, rows, 4 * dim),
        masks=floats(layers, rows, 6 * dim),
    )
    return Workspace(
        layer=layer,
        begin=np.zeros(rows + 1, np.int64),
        owner=np.zeros(rows, np.int64),
        position=np.zeros(rows, np.int64),
        h=floats(rows, dim),
        hat=floats(rows, dim),
        out=floats(rows, dim),
        spread=floats(rows),
        masks=floats(rows, dim),
        down=floats(rows, dim),
        wide=floats(rows, 4 * dim),
        narrow=floats(rows, dim),
        three=floats(rows, 3 * dim),
        heads=floats(4, heads, rows, each),
        square=floats(_ROWS * window),
        table=floats(blocks, logits, ITEMS),
        top=floats(ITEMS),
        words=words,
        lanes=words.view(np.int16),
        factors=floats(4 * len(words)),
    )


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
def _add_rows(down: Any, total: Any) -> None:
    for i in range(len(down)):
        for k in range(len(total)):
            total[k] += down[i, k]


@jit
def _drop(shape: Any, learned: Any, row: int, most: int, site: int, out: Any, work: Any) -> None:
    """Factors of dropout of a row's values at a place of the network: `Dropout.masks` with widths up to `most`."""
    if shape.scale == np.float32(1.0):
        out.fill(1)
    else:
        window = work.owner[row]
        position = np.uint64(learned.first[window] + work.position[row])
        draw = position * np.uint64((most + 3) // 4) + (np.uint64(site) << np.uint64(32))
        key, words, lanes = learned.keys[window], work.words, work.lanes
        for word in range((len(out) + 3) // 4):
            words[word] = bits(key, draw + np.uint64(word))
        for k in range(len(out)):
            out[k] = shape.scale if lanes[k] >= shape.level else np.float32(0.0)


@jit
def _norm(h: Any, scale: Any, shift: Any, hat: Any, out: Any, spread: Any) -> None:
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
            out[i, k] = hat[i, k] * (np.float32(1.0) + scale[k]) + shift[k]


@jit
def _norm_back(above: Any, scale: Any, hat: Any, spread: Any, to_scale: Any, to_shift: Any, down: Any) -> None:
    """Add the gradient of what was normed to `down`. `above` becomes the gradient of the rows without scale."""
    dim = above.shape[1]
    for i in range(len(above)):
        mean, along = np.float32(0.0), np.float32(0.0)
        for k in range(dim):
            to_scale[k] += above[i, k] * hat[i, k]
            to_shift[k] += above[i, k]
            above[i, k] *= np.float32(1.0) + scale[k]
            mean += above[i, k]
            along += above[i, k] * hat[i, k]
        mean /= np.float32(dim)
        along /= np.float32(dim)
        for k in range(dim):
            down[i, k] += spread[i] * (above[i, k] - mean - hat[i, k] * along)


@jit
def _gelu(bias: Any, masks: Any, first: int, active: Any, slope: Any) -> None:
    """From x, in `slope`: x P(x) with the normal distribution P, and its derivative P(x) + x p(x), times factors of
    dropout, columns of `masks` from the first one on. Of P = 1 - p poly(1 / (1 + 0.23 |x|)) (Abramowitz and Stegun
    7.1.26) and p the exponential is the same. Each loop has few arrays, or the compiler would not take many numbers at
    once."""
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
            active[i, k] = x * below
            slope[i, k] = below + x * np.float32(0.3989422804014327) * e
        factors = masks[i, first : first + len(bias)]
        for k in range(len(bias)):
            active[i, k] *= factors[k]
        for k in range(len(bias)):
            slope[i, k] *= factors[k]


@jit
def _block(each: int, window: int) -> int:
    """Queries whose weights are taken together."""
    return int(_tile(each, window, _ROWS))


@jit
def _soften(weights: Any, before: int) -> None:
    """Softmax over the keys that each query of a block sees: those up to its own, the first one `before` + 1."""
    for i in range(len(weights)):
        row, seen = weights[i], before + i + 1
        most, total = row[0], np.float32(0.0)
        for k in range(seen):
            most = max(most, row[k])
        for k in range(seen):
            row[k] = exp(row[k] - most)
            total += row[k]
        total = np.float32(1.0) / total
        for k in range(seen):
            row[k] *= total
        for k in range(seen, len(row)):
            row[k] = 0


@jit
def _split(shape: Any, n: int, number: int, work: Any) -> None:
    """Queries, over the root of their width, keys and values of each head."""
    layer, each, three = work.layer, work.heads.shape[3], work.three
    width, scale = shape.heads * each, np.float32(1.0 / math.sqrt(each))
    for head in range(shape.heads):
        query, key, value = layer.query[number, head], layer.key[number, head], layer.value[number, head]
        for i in range(n):
            for k in range(each):
                query[i, k] = three[i, head * each + k] * scale
                key[i, k] = three[i, width + head * each + k]
                value[i, k] = three[i, 2 * width + head * each + k]


@jit
def _mix(shape: Any, learned: Any, windows: int, n: int, number: int, work: Any) -> None:
    """Attention of a layer, head by head, into `mixed`."""
    layer, each, begin = work.layer, work.heads.shape[3], work.begin
    step = _block(each, shape.window)
    for head in range(shape.heads):
        query, key, value = layer.query[number, head], layer.key[number, head], layer.value[number, head]
        out, place = work.heads[0, head], 0
        site = 2 + (1 + shape.heads) * number + head
        for at in range(windows):
            start, stop = begin[at], begin[at + 1]
            for block in range(start, stop, step):
                end = min(stop, block + step)
                size, seen = end - block, end - start
                weights = layer.weights[number, head, place : place + size * seen].reshape(size, seen)
                kept = layer.kept[number, head, place : place + size * seen].reshape(size, seen)
                place += size * seen
                multiply(query[block:end], key[start:end].T, weights)
                _soften(weights, block - start)
                for i in range(size):
                    here = block - start + i + 1
                    factors = work.factors[:here]
                    _drop(shape, learned, block + i, shape.window, site, factors, work)
                    for k in range(here):
                        kept[i, k] = weights[i, k] * factors[k]
                    for k in range(here, seen):
                        kept[i, k] = 0
                multiply(kept, value[start:end], out[block:end])
        for i in range(n):
            for k in range(each):
                layer.mixed[number, i, head * each + k] = out[i, k]


@jit
def _mix_back(shape: Any, windows: int, n: int, number: int, work: Any) -> None:
    """From the gradient of `mixed`, in `out`, to that of queries, keys and values, in `three`."""
    layer, each, begin, three = work.layer, work.heads.shape[3], work.begin, work.three
    step, width, scale = _block(each, shape.window), shape.heads * each, np.float32(1.0 / math.sqrt(each))
    for head in range(shape.heads):
        query, key, value = layer.query[number, head], layer.key[number, head], layer.value[number, head]
        above, to_query = work.heads[0, head], work.heads[1, head]
        to_key, to_value = work.heads[2, head], work.heads[3, head]
        for i in range(n):
            for k in range(each):
                above[i, k] = work.out[i, head * each + k]
                to_key[i, k] = 0
                to_value[i, k] = 0
        place = 0
        for at in range(windows):
            start, stop = begin[at], begin[at + 1]
            for block in range(start, stop, step):
                end = min(stop, block + step)
                size, seen = end - block, end - start
                weights = layer.weights[number, head, place : place + size * seen].reshape(size, seen)
                kept = layer.kept[number, head, place : place + size * seen].reshape(size, seen)
                slope = work.square[: size * seen].reshape(size, seen)
                place += size * seen
                add_product(kept.T, above[block:end], to_value[start:end])
                multiply(above[block:end], value[start:end].T, slope)
                for i in range(size):
                    total = np.float32(0.0)
                    for k in range(seen):
                        slope[i, k] *= kept[i, k]
                        total += slope[i, k]
                    for k in range(seen):
                        slope[i, k] -= weights[i, k] * total
                multiply(slope, key[start:end], to_query[block:end])
                add_product(slope.T, query[block:end], to_key[start:end])
        for i in range(n):
            for k in range(each):
                three[i, head * each + k] = to_query[i, k] * scale
                three[i, width + head * each + k] = to_key[i, k]
                three[i, 2 * width + head * each + k] = to_value[i, k]


@jit
def _add_dropped(x: Any, bias: Any, masks: Any, first: int, h: Any) -> None:
    """h += (x + bias) times factors of dropout, columns of `masks` from the first one on."""
    for i in range(len(h)):
        factors = masks[i, first : first + len(bias)]
        for k in range(len(bias)):
            h[i, k] += (x[i, k] + bias[k]) * factors[k]


@jit
def _layer(shape: Any, learned: Any, weights: Any, turned: Any, number: int, windows: int, n: int, work: Any) -> None:
    """One layer at all rows."""
    layer, dim = work.layer, work.h.shape[1]
    _before(weights, turned, number, n, work)
    _split(shape, n, number, work)
    _mix(shape, learned, windows, n, number, work)
    for i in range(n):
        _drop(shape, learned, i, 6 * dim, 1 + (1 + shape.heads) * number, layer.masks[number, i], work)
    _after(weights, turned, number, n, work)


@jit
def _before(weights: Any, turned: Any, number: int, n: int, work: Any) -> None:
    """Queries, keys and values, side by side in `three`."""
    layer = work.layer
    hat, normed, spread = layer.hat[number], layer.normed[number], layer.spread[number]
    _norm(work.h[:n], weights.first_scale[number], weights.first_shift[number], hat, normed, spread)
    _times(normed[:n], turned.attend[number], work.three)


@jit
def _after(weights: Any, turned: Any, number: int, n: int, work: Any) -> None:
    """What comes after attention, for rows of h and `mixed`."""
    layer, h, dim = work.layer, work.h[:n], work.h.shape[1]
    hat, normed, spread = layer.second_hat[number], layer.second[number], layer.second_spread[number]
    masks = layer.masks[number]
    _times(layer.mixed[number, :n], turned.mix[number], work.narrow)
    _add_dropped(work.narrow, weights.mix_bias[number], masks, 0, h)
    _norm(h, weights.second_scale[number], weights.second_shift[number], hat, normed, spread)
    active, slope = layer.active[number], layer.slope[number]
    _times(normed[:n], turned.widen[number], slope)
    _gelu(weights.widen_bias[number], masks, dim, active[:n], slope)
    _times(active[:n], turned.narrow[number], work.narrow)
    _add_dropped(work.narrow, weights.narrow_bias[number], masks, 5 * dim, h)


@jit
def _layer_back(shape: Any, weights: Any, sums: Any, number: int, windows: int, n: int, work: Any) -> None:
    """The way back: `down`, the gradient of what the layer gives, becomes that of what it takes."""
    layer, down, dim = work.layer, work.down[:n], work.down.shape[1]
    narrow, wide, three, masks = work.narrow[:n], work.wide[:n], work.three[:n], layer.masks[number, :n]
    _dropped(down, masks, 5 * dim, narrow)
    _add_rows(narrow, sums.narrow_bias[number])
    _add_outer(narrow, layer.active[number, :n], sums.narrow[number])
    _times(narrow, weights.narrow[number], wide)
    _dropped(wide, layer.slope[number], 0, wide)
    _add_rows(wide, sums.widen_bias[number])
    _add_outer(wide, layer.second[number, :n], sums.widen[number])
    _times(wide, weights.widen[number], narrow)
    scale, to_scale, to_shift = weights.second_scale[number], sums.second_scale[number], sums.second_shift[number]
    _norm_back(narrow, scale, layer.second_hat[number], layer.second_spread[number], to_scale, to_shift, down)
    _dropped(down, masks, 0, narrow)
    _add_rows(narrow, sums.mix_bias[number])
    _add_outer(narrow, layer.mixed[number, :n], sums.mix[number])
    _times(narrow, weights.mix[number], work.out)
    _mix_back(shape, windows, n, number, work)
    _add_outer(three, layer.normed[number, :n], sums.attend[number])
    _times(three, weights.attend[number], narrow)
    scale, to_scale, to_shift = weights.first_scale[number], sums.first_scale[number], sums.first_shift[number]
    _norm_back(narrow, scale, layer.hat[number], layer.spread[number], to_scale, to_shift, down)


@jit
def _dropped(x: Any, masks: Any, first: int, out: Any) -> None:
    """x times factors, columns of `masks` from the first one on."""
    for i in range(len(x)):
        factors = masks[i, first : first + x.shape[1]]
        for k in range(x.shape[1]):
            out[i, k] = x[i, k] * factors[k]


@jit
def _begin(shape: Any, learned: Any, weights: Any, windows: Any, work: Any) -> int:
    """The rows of these windows; returns how many there are. h = (v + place) times factors of dropout."""
    n, dim = 0, work.h.shape[1]
    for at in range(len(windows)):
        window = windows[at]
        work.begin[at] = n
        place = len(weights.places) - learned.counts[window]
        for step in range(learned.counts[window]):
            work.owner[n], work.position[n] = window, step
            _drop(shape, learned, n, dim, 0, work.masks[n], work)
            item = learned.items[window, step]
            for k in range(dim):
                work.h[n, k] = (weights.items[item, k] + weights.places[place + step, k]) * work.masks[n, k]
            n += 1
    work.begin[len(windows)] = n
    return n


@jit
def _some(counts: Any, chosen: Any, start: int, rows: int) -> int:
    """Where the windows end that go through the network together with the one at `start`."""
    stop, filled = start, 0
    while stop < len(chosen) and (stop == start or filled + counts[chosen[stop]] <= rows):
        filled += counts[chosen[stop]]
        stop += 1
    return stop


@jit
def _add_bias(table: Any, i: int, bias: Any, top: Any) -> np.float32:
    """Add biases to the logits of a row; returns the highest. The compiler takes many numbers at once only where a
    maximum is of one number with one other, so that each place of a block has a highest of its own first."""
    top.fill(NEVER)
    for block in range(len(table)):
        row, some = table[block, i], bias[block * ITEMS : (block + 1) * ITEMS]
        for k in range(ITEMS):
            row[k] += some[k]
        for k in range(ITEMS):
            top[k] = max(top[k], row[k])
    most = NEVER
    for k in range(ITEMS):
        most = max(most, top[k])
    return most


@jit
def _loss(learned: Any, weights: Any, turned: Any, sums: Any, n: int, losses: Any, work: Any) -> None:
    """Cross-entropy of the next items at n rows of `out`, and its gradient: of `out` in `narrow`."""
    table, dim = work.table, work.out.shape[1]
    blocks, step = len(table), _tile(ITEMS, dim, table.shape[1])
    for start in range(0, n, step):
        stop = min(n, start + step)
        out, onto, size = work.out[start:stop], work.narrow[start:stop], stop - start
        for block in range(blocks):
            multiply(out, turned.items[block], table[block, :size])
        for i in range(size):
            most, total = _add_bias(table, i, weights.item_bias, work.top), np.float32(0.0)
            for block in range(blocks):
                row = table[block, i]
                for k in range(ITEMS):
                    row[k] = exp(row[k] - most)
                    total += row[k]
            total = np.float32(1.0) / total
            owner, position = work.owner[start + i], work.position[start + i]
            target = learned.targets[owner, position]
            chosen = table[target // ITEMS, i, target % ITEMS] * total
            losses[owner] -= log(max(chosen, _TINY))
            for block in range(blocks):
                row, to_bias = table[block, i], sums.item_bias[block * ITEMS : (block + 1) * ITEMS]
                for k in range(ITEMS):
                    row[k] *= total
                    to_bias[k] += row[k]
            table[target // ITEMS, i, target % ITEMS] = chosen - np.float32(1.0)
            sums.item_bias[target] -= np.float32(1.0)
        for i in range(size):
            for k in range(dim):
                onto[i, k] = 0
        for block in range(blocks):
            some = slice(block * ITEMS, (block + 1) * ITEMS)
            add_product(table[block, :size], weights.items[some], onto)
            add_product(table[block, :size].T, out, sums.items[some])


@kernel
def transformer_gradient(
    chosen: Any, shape: Any, learned: Any, weights: Any, turned: Any, sums: Any, losses: Any, work: Any
) -> None:
    """Add to `sums` the gradients of these windows, and to `losses` [windows] what they lose."""
    start, dim = 0, work.h.shape[1]
    while start < len(chosen):
        stop = _some(learned.counts, chosen, start, len(work.h))
        windows = chosen[start:stop]
        n = _begin(shape, learned, weights, windows, work)
        for number in range(len(weights.attend)):
            _layer(shape, learned, weights, turned, number, len(windows), n, work)
        _norm(work.h[:n], weights.scale, weights.shift, work.hat, work.out, work.spread)
        _loss(learned, weights, turned, sums, n, losses, work)
        down, narrow = work.down[:n], work.narrow[:n]
        down.fill(0)
        _norm_back(narrow, weights.scale, work.hat, work.spread, sums.scale, sums.shift, down)
        for number in range(len(weights.attend) - 1, -1, -1):
            _layer_back(shape, weights, sums, number, len(windows), n, work)
        for i in range(n):
            window, step = work.owner[i], work.position[i]
            item, place = learned.items[window, step], len(weights.places) - learned.counts[window] + step
            for k in range(dim):
                slope = down[i, k] * work.masks[i, k]
                sums.items[item, k] += slope
                sums.places[place, k] += slope
        start = stop


@jit
def _last(shape: Any, weights: Any, turned: Any, windows: int, n: int, work: Any) -> None:
    """The last layer at the last row of each window: these become the first rows of h."""
    number, each, dim = len(weights.attend) - 1, work.heads.shape[3], work.h.shape[1]
    layer, begin, factors = work.layer, work.begin, work.factors
    _before(weights, turned, number, n, work)
    _split(shape, n, number, work)
    for at in range(windows):
        start, last = begin[at], begin[at + 1] - 1
        for head in range(shape.heads):
            query, key, value = layer.query[number, head], layer.key[number, head], layer.value[number, head]
            met = factors[: last + 1 - start]
            most, total = NEVER, np.float32(0.0)
            for i in range(len(met)):
                along = np.float32(0.0)
                for k in range(each):
                    along += query[last, k] * key[start + i, k]
                met[i] = along
                most = max(most, along)
            for i in range(len(met)):
                met[i] = exp(met[i] - most)
                total += met[i]
            mixed = layer.mixed[number, at, head * each : (head + 1) * each]
            mixed.fill(0)
            for i in range(len(met)):
                for k in range(each):
                    mixed[k] += met[i] / total * value[start + i, k]
        for k in range(dim):
            work.h[at, k] = work.h[last, k]
    layer.masks[number, :windows].fill(1)
    _after(weights, turned, number, windows, work)


@kernel
def transformer_outputs(
    chosen: Any, shape: Any, learned: Any, weights: Any, turned: Any, found: Any, work: Any
) -> None:
    """Into `found` [windows, dim] what the network makes of these windows at their last item; nothing is dropped."""
    start = 0
    while start < len(chosen):
        stop = _some(learned.counts, chosen, start, len(work.h))
        windows = chosen[start:stop]
        n = _begin(shape, learned, weights, windows, work)
        for number in range(len(weights.attend) - 1):
            _layer(shape, learned, weights, turned, number, len(windows), n, work)
        _last(shape, weights, turned, len(windows), n, work)
        _norm(work.h[: len(windows)], weights.scale, weights.shift, work.hat, work.out, work.spread)
        for at in range(len(windows)):
            for k in range(work.h.shape[1]):
                found[windows[at], k] = work.out[at, k]
        start = stop
