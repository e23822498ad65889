"""The way back through a network, once for all rows that have the same units active.

A row's logit is linear where its units stay as they are. So rows of one pattern c of active units have the slopes s_c
of the logit in common, and what comes back to them differs by their errors e_j alone:

    dL/dW_l = sum_c (sum_{j in c} e_j h_{l-1,j})^T s_{c,l},      dL/dx_j = e_j s_{c(j),0} W_0^T

The more a network is trained, the fewer patterns the rows of a step have, and far fewer if its first layer is left
aside. So patterns are those of the layers above. In the first layer a pattern has the active units of its first row f.
Another row j may differ there, mostly in few units: with r_c the slopes if all first units were active, and a_j 1 for
those that are and 0 for others, d_j = (a_j - a_f) r_c is added:

    dL/dW_0 = sum_c (sum_{j in c} e_j x_j)^T s_{c,0} + sum_j e_j x_j^T d_j,      dL/dx_j = e_j (s_{c(j),0} + d_j) W_0^T
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from federec.kernels.compiling import jit
from federec.kernels.cpu import even, floats
from federec.kernels.matrices import add_product, multiply

_BITS = np.int64(1) << np.arange(64)
_DE_BRUIJN = np.uint64(0x03F7_9D71_B4CB_0A89)  # its 64 stretches of 6 bits are all different: each bit has its own
_PLACE_OF = np.zeros(64, np.int64)
_PLACE_OF[(_BITS.view(np.uint64) * _DE_BRUIJN) >> np.uint64(58)] = np.arange(64)


class Wanted(NamedTuple):
    """Of what a gradient is asked for."""

    rows: Any
    layers: Any
    user: Any
    """Of p and q."""


class Patterns(NamedTuple):
    """The patterns of a step's rows."""

    merge: bool
    """Otherwise each row is a pattern of its own."""
    salt: tuple[Any, ...]
    """A random number for each unit of each layer. The first layer's are not used; but a tuple must not be empty."""
    names: Any
    """[C] its active units' random numbers, combined; two patterns have the same by a chance of 2^-64."""
    bins: Any
    """[a power of 2] patterns by name; -1: none."""
    count: Any
    """[1] how many there are."""
    error: Any
    """[C] the sum of its rows' errors."""
    sums: tuple[Any, ...]
    """Of each layer: [C, inputs] the sum of what came into it times the rows' errors."""
    slopes: tuple[Any, ...]
    """Of each layer: [C, width] of the logit at its output, 0 for inactive units."""
    free: Any
    """[C, width] at the first layer's output, before those of inactive units are set to 0."""
    leads: Any
    """[C, words] the first layer's active units of the first row, as bits."""
    slopes_x: Any
    """[C, dim] of the logit at x, for the first row."""
    added: Any
    """[width, dim] the gradient of W_0, transposed, as far as it comes from rows that differ."""
    row_names: Any
    row_bits: Any
    whose: Any
    """[rows of a tile] their names, active units of the first layer, and patterns."""


def make_patterns(rows: int, tile: int, inputs: tuple[int, ...], hidden: tuple[int, ...], merge: bool) -> Patterns:
    """Room for the patterns of so many rows, `tile` of which come at a time."""
    random, words = np.random.default_rng(0), -(-hidden[0] // 64)
    return Patterns(
        merge,
        tuple(random.integers(-(2**63), 2**63, size) for size in hidden),
        np.zeros(rows, np.int64),
        np.zeros(1 << (2 * rows).bit_length(), np.int32),
        np.zeros(1, np.int64),
        floats(rows),
        tuple(floats(rows, size) for size in inputs),
        tuple(floats(rows, size) for size in hidden),
        floats(rows, hidden[0]),
        np.zeros((rows, words), np.int64),
        floats(rows, inputs[0]),
        floats(hidden[0], inputs[0]),
        np.zeros(tile, np.int64),
        np.zeros((tile, words), np.int64),
        np.zeros(tile, np.int32),
    )


@jit
def forget(patterns: Any) -> None:
    """Begin anew: there are no patterns yet."""
    patterns.count[0] = 0
    if patterns.merge:
        patterns.bins.fill(-1)
        patterns.added.fill(0)


@jit
def _name(rows: Any, salt: Any, names: Any) -> None:
    """Combine the numbers of rows' active units with their names."""
    none = np.int64(0)
    for i in range(len(names)):
        name = none
        for k in range(len(salt)):
            name ^= salt[k] if rows[i, k] > 0 else none
        names[i] ^= name


@jit
def _find(names: Any, bins: Any, named: Any, count: int, whose: Any) -> int:
    """The pattern of each row by its name; new ones are counted on. Returns how many there are."""
    last = len(bins) - 1
    for i in range(len(names)):
        name = names[i]
        place = name & last
        while bins[place] >= 0 and named[bins[place]] != name:
            place = (place + 1) & last
        if bins[place] < 0:
            bins[place], named[count] = count, name
            count += 1
        whose[i] = bins[place]
    return count


@jit
def _gate(rows: Any, whose: Any, new: int, slopes: Any) -> None:
    """Patterns from `new` on have no slope where units of their first rows are inactive."""
    none = np.float32(0.0)
    for i in range(len(whose)):
        if whose[i] == new:
            for k in range(slopes.shape[1]):
                slopes[new, k] = slopes[new, k] if rows[i, k] > 0 else none
            new += 1


@jit
def _sum(rows: Any, error: Any, whose: Any, new: int, sums: Any) -> None:
    """Add rows times their errors up, pattern by pattern; those from `new` on have no sums yet."""
    for i in range(len(whose)):
        scale, pattern = error[i], whose[i]
        if pattern == new:
            for k in range(sums.shape[1]):
                sums[pattern, k] = scale * rows[i, k]
            new += 1
        else:
            for k in range(sums.shape[1]):
                sums[pattern, k] += scale * rows[i, k]


@jit
def _sum_errors(error: Any, whose: Any, new: int, sums: Any) -> None:
    """The same of errors alone."""
    for i in range(len(whose)):
        if whose[i] == new:
            sums[new] = 0
            new += 1
        sums[whose[i]] += error[i]


@jit
def _repeat(row: Any, out: Any) -> None:
    for i in range(len(out)):
        for k in range(len(row)):
            out[i, k] = row[k]


@jit
def _copy(rows: Any, out: Any) -> None:
    for i in range(len(out)):
        for k in range(out.shape[1]):
            out[i, k] = rows[i, k]


@jit
def _open(patterns: Any, hidden: Any, whose: Any, new: int, h: Any, turned: Any, rows: bool) -> None:
    """Slopes of patterns from `new` on, from the logit down: to the first layer's output, and with `rows` to x."""
    slopes, free, count, last = patterns.slopes, patterns.free, patterns.count[0], len(hidden) - 1
    _repeat(h, slopes[last][new:count] if last > 0 else free[new:count])
    for layer in range(last, 0, -1):
        _gate(hidden[layer], whose, new, slopes[layer])
        below = slopes[layer - 1] if layer > 1 else free
        multiply(slopes[layer][new:count], turned[layer], below[new:count])
    _copy(free[new:count], slopes[0][new:count])
    _gate(hidden[0], whose, new, slopes[0])
    if rows:
        multiply(slopes[0][new:count], turned[0], patterns.slopes_x[new:count])


@jit
def _active(rows: Any, out: Any) -> None:
    """The active units of rows as bits, 64 to a word."""
    none = np.int64(0)
    for i in range(len(out)):
        for word in range(out.shape[1]):
            total, first = none, np.uint64(64 * word)
            for k in range(min(64, rows.shape[1] - 64 * word)):
                total |= _BITS[k] if rows[i, first + np.uint64(k)] > 0 else none
            out[i, word] = total


@jit
def _scale(rows: Any, error: Any, whose: Any, out: Any) -> None:
    """Patterns' rows times the errors."""
    for i in range(len(whose)):
        scale, pattern = error[i], whose[i]
        for k in range(out.shape[1]):
            out[i, k] = scale * rows[pattern, k]


@jit
def _correct(
    patterns: Any, x: Any, error: Any, whose: Any, new: int, turned: Any, wanted: Any, pull: Any, out: Any
) -> None:
    """Add what rows have more, or less, than the first of their patterns, which for those from `new` on comes now."""
    leads, free, total, bits = patterns.leads, patterns.free, patterns.added, patterns.row_bits
    for i in range(len(whose)):
        pattern, first, any_ = whose[i], whose[i] == new, np.int64(0)
        new += first
        for word in range(bits.shape[1]):
            active = bits[i, word]
            any_ |= active
            if first:
                leads[pattern, word] = active
            different = active ^ leads[pattern, word]
            while different != 0:
                bit = different & -different
                different ^= bit
                unit = 64 * word + _PLACE_OF[(np.uint64(bit) * _DE_BRUIJN) >> np.uint64(58)]
                scale = error[i] * free[pattern, unit]
                scale = scale if active & bit else -scale
                pull[unit] += scale
                if wanted.rows:
                    for k in range(x.shape[1]):
                        out[i, k] += scale * turned[unit, k]
                if wanted.layers:
                    for k in range(x.shape[1]):
                        total[unit, k] += scale * x[i, k]
        if wanted.rows and any_ == 0:  # nothing comes back, to the last bit
            for k in range(x.shape[1]):
                out[i, k] = 0


@jit
def take_in(
    patterns: Any, x: Any, hidden: Any, error: Any, h: Any, turned: Any, wanted: Any, pull: Any, x_gradient: Any
) -> None:
    """Rows that went forward join their patterns. If it is `wanted`, they get their gradient of x, and what layers need
    of them is added up."""
    n, new = len(error), patterns.count[0]
    names, whose = patterns.row_names[:n], patterns.whose[:n]
    if patterns.merge:
        names.fill(0)
        for layer in range(1, len(hidden)):
            _name(hidden[layer], patterns.salt[layer], names)
        patterns.count[0] = _find(names, patterns.bins, patterns.names, new, whose)
    else:
        for i in range(n):
            whose[i] = new + i
        patterns.count[0] += n
    _open(patterns, hidden, whose, new, h, turned, wanted.rows)
    _sum_errors(error, whose, new, patterns.error)
    if wanted.layers:
        _sum(x, error, whose, new, patterns.sums[0])
        for layer in range(1, len(hidden)):
            _sum(hidden[layer - 1], error, whose, new, patterns.sums[layer])
    if wanted.rows:
        _scale(patterns.slopes_x, error, whose, x_gradient)
    if patterns.merge:
        _active(hidden[0], patterns.row_bits[:n])
        _correct(patterns, x, error, whose, new, turned[0], wanted, pull, x_gradient)


@jit
def _add_scaled(slopes: Any, error: Any, total: Any) -> None:
    """Add up slopes times the patterns' errors."""
    for i in range(len(error)):
        scale = error[i]
        for k in range(len(total)):
            total[k] += scale * slopes[i, k]


@jit
def _add_turned(rows: Any, total: Any) -> None:
    """Add rows to columns; most are 0."""
    for j in range(len(rows)):
        size = np.float32(0.0)
        for k in range(rows.shape[1]):
            size += abs(rows[j, k])
        if size != 0:  # also where it is not a number
            for k in range(rows.shape[1]):
                total[k, j] += rows[j, k]


@jit
def transpose(values: Any, out: Any) -> None:
    """Rows to columns."""
    for start in range(0, out.shape[1], 16):  # so many are a line of memory
        some = values[start : start + 16]
        for j in range(out.shape[0]):
            to = out[j, start : start + 16]
            for k in range(len(to)):
                to[k] = some[k, j]


@jit
def add_up(patterns: Any, tile: int, layers: bool, weights: Any, biases: Any, pull: Any) -> None:
    """The gradient of weights and biases; without `layers` only of the first bias, which is `pull`."""
    count, error, sums, slopes = patterns.count[0], patterns.error, patterns.sums, patterns.slopes
    size = even(count, tile)
    for start in range(0, count, size):
        stop = min(count, start + size)
        _add_scaled(slopes[0][start:stop], error[start:stop], pull)
        if layers:
            for layer in range(len(slopes)):
                add_product(sums[layer][start:stop].T, slopes[layer][start:stop], weights[layer])
                if layer > 0:
                    _add_scaled(slopes[layer][start:stop], error[start:stop], biases[layer])
    if layers and patterns.merge:
        _add_turned(patterns.added, weights[0])
