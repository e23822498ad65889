"""The units of a network's first layer that a device's rows can activate. All others are 0 for each of its rows, as are
their gradients, so a device can go without them: in a trained network that is half of the layer.

Unit k is out of reach if its largest value over all items, with q, rows and layers moved as far as they are moved
uphill, is not above 0:

    o_k + max_j x_j W_k + max(rho_shared |W_k|, rho_private |U_k|) <= 0,        o = q U + b_0

W_k and U_k, its columns of W_0 and U, do not move uphill: no row activates the unit, so their gradients are 0. Rows
move by at most rho_shared together, q by at most rho_private. Where a device has layers of its own |x_j| |W_k| stands
for x_j W_k, which is not known.
"""

# ruff: noqa: RUF005 - numba adds tuples, but does not unpack them into others

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from federec.kernels.compiling import jit
from federec.kernels.cpu import copy, floats, look_up
from federec.kernels.network import Net, Shape, Tile, make_net
from federec.kernels.patterns import Patterns

_LANES = 16  # units that a processor takes at once


class Narrow(NamedTuple):
    """Memory for a device's network without units that are out of reach."""

    net: Net
    gradient: Net
    units: Any
    """Those that it has."""
    rows: Any
    users: Any
    """[width] |W_k|^2 and |U_k|^2."""


def make_narrow(shape: Shape) -> Narrow:
    """For any number of units."""
    width = shape.hidden[0]
    return Narrow(make_net(shape), make_net(shape), np.zeros(width, np.uint32), floats(width), floats(width))


@jit
def _squares(weights: Any, out: Any) -> None:
    """Sums of squares of columns."""
    out.fill(0)
    for j in range(weights.shape[0]):
        for k in range(weights.shape[1]):
            out[k] += weights[j, k] * weights[j, k]


@jit
def reach(narrow: Any, net: Any, offset: Any, highest: Any, longest: Any, plan: Any) -> int:
    """Find the units within reach, and so many others that all lanes of the processor are used; returns how many.
    `highest`: [width] the largest x_j W_k; empty where only `longest`, the largest |x_j|, is known."""
    units, width, count = narrow.units, len(offset), 0
    _squares(net.weights[0], narrow.rows)
    _squares(net.user, narrow.users)
    spare = width
    for k in range(width):
        row = np.float32(math.sqrt(narrow.rows[k]))
        most = highest[k] if len(highest) else longest * row
        moved = max(plan.rho_shared * row, plan.rho_private * np.float32(math.sqrt(narrow.users[k])))
        if offset[k] + most + moved <= 0:
            spare -= 1
            units[spare] = k
        else:  # also what is not a number
            units[count] = k
            count += 1
    return min(width, (count + _LANES - 1) // _LANES * _LANES)


@jit
def narrow_net(net: Any, width: int) -> Any:
    """A network with so many units in its first layer in the memory of another one, the end of which stays as it is."""
    dim, above = net.weights[0].shape[0], net.weights[1].shape[1]
    head = net.user.size + net.weights[0].size + net.biases[0].size + net.weights[1].size
    inputs, outputs = dim * width, width * above
    flat = net.flat[head - 2 * inputs - width - outputs :]
    first = flat[inputs : 2 * inputs].reshape(dim, width)
    second = flat[2 * inputs + width : 2 * inputs + width + outputs].reshape(width, above)
    turned = (
        net.turned[0].reshape(-1)[:inputs].reshape(width, dim),
        net.turned[1].reshape(-1)[:outputs].reshape(above, width),
    )
    return Net(
        flat,
        flat[:inputs].reshape(dim, width),
        (first, second) + net.weights[2:],
        (flat[2 * inputs : 2 * inputs + width],) + net.biases[1:],
        net.top,
        turned + net.turned[2:],
    )


@jit
def narrow_tile(tile: Any, units: Any) -> Any:
    """A tile for these units, in the memory of another one."""
    width, rows = len(units), len(tile.error)
    return Tile(
        tile.v,
        tile.x,
        (tile.hidden[0].reshape(-1)[: rows * width].reshape(rows, width),) + tile.hidden[1:],
        tile.error,
        tile.offset[:width],
        tile.pair,
        tile.places,
        tile.pull[:width],
        tile.mix,
        units,
    )


@jit
def narrow_patterns(patterns: Any, width: int) -> Any:
    """Patterns of rows with so many units in the first layer, in the memory of others."""
    rows, size = len(patterns.error), len(patterns.error) * width
    return Patterns(
        patterns.merge,
        patterns.salt,
        patterns.names,
        patterns.bins,
        patterns.count,
        patterns.error,
        (patterns.sums[0], patterns.sums[1].reshape(-1)[:size].reshape(rows, width)) + patterns.sums[2:],
        (patterns.slopes[0].reshape(-1)[:size].reshape(rows, width),) + patterns.slopes[1:],
        patterns.free.reshape(-1)[:size].reshape(rows, width),
        patterns.leads,
        patterns.slopes_x,
        patterns.added[:width],
        patterns.row_names,
        patterns.row_bits,
        patterns.whose,
    )


@jit
def _pick(values: Any, units: Any, out: Any) -> None:
    """These columns."""
    for j in range(out.shape[0]):
        for k in range(len(units)):
            out[j, k] = values[j, units[k]]


@jit
def _spread(values: Any, units: Any, out: Any) -> None:
    """Columns to where they were picked."""
    for j in range(out.shape[0]):
        for k in range(len(units)):
            out[j, units[k]] = values[j, k]


@jit
def pick(net: Any, units: Any, out: Any) -> None:
    """The network with only these units."""
    _pick(net.user, units, out.user)
    _pick(net.weights[0], units, out.weights[0])
    for k in range(len(units)):
        out.biases[0][k] = net.biases[0][units[k]]
    look_up(net.weights[1], units, out.weights[1])
    _copy_above(net, out)
    look_up(net.turned[0], units, out.turned[0])
    _pick(net.turned[1], units, out.turned[1])
    for layer in range(2, len(net.turned)):
        copy(net.turned[layer].reshape(-1), out.turned[layer].reshape(-1))


@jit
def spread(net: Any, units: Any, out: Any) -> None:
    """A gradient with only these units as that of all, which is 0 for the others."""
    out.flat.fill(0)
    _spread(net.user, units, out.user)
    _spread(net.weights[0], units, out.weights[0])
    for k in range(len(units)):
        out.biases[0][units[k]] = net.biases[0][k]
        for j in range(net.weights[1].shape[1]):
            out.weights[1][units[k], j] = net.weights[1][k, j]
    _copy_above(net, out)


@jit
def _copy_above(net: Any, out: Any) -> None:
    """What does not depend on the first layer's units, which is the end of both vectors."""
    size = len(net.top)
    for layer in range(1, len(net.biases)):
        size += len(net.biases[layer]) + (net.weights[layer].size if layer > 1 else 0)
    copy(net.flat[len(net.flat) - size :], out.flat[len(out.flat) - size :])
