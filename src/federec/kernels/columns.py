"""The rows of a batch as columns: value k of row i lies at [k, i]. Loops over rows then run along memory and take 16
rows at once; loops over the few values of one row would end before that pays.

Dimensions are filled up with zeros to a multiple of four, and columns to a multiple of 32, so that no loop has a rest.
What fills up has weight 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from federec.kernels.compiling import inlined, jit
from federec.kernels.cpu import exp, log1p, sigmoid

_TALL = 4
_WIDE = 32


def height(dim: int) -> int:
    """Dimensions with those that fill up."""
    return -(-dim // _TALL) * _TALL


def width(rows: int) -> int:
    """Columns of so many rows with those that fill up."""
    return -(-rows // _WIDE) * _WIDE


@inlined
def shaped(values: Any, dim: int, rows: int) -> Any:
    """The first of these values as columns of so many rows."""
    tall, wide = -(-dim // _TALL) * _TALL, -(-rows // _WIDE) * _WIDE
    return values[: tall * wide].reshape(tall, wide)


@jit
def gather(table: Any, rows: Any, out: Any) -> None:
    """These rows of a table as columns."""
    out.fill(0)
    for i in range(len(rows)):
        row = rows[i]
        for k in range(table.shape[1]):
            out[k, i] = table[row, k]


@jit
def scatter(columns: Any, rows: Any, table: Any) -> None:
    """Columns back to these rows of a table."""
    for i in range(len(rows)):
        row = rows[i]
        for k in range(table.shape[1]):
            table[row, k] = columns[k, i]


@jit
def add_products(w: Any, scale: Any, columns: Any, z: Any) -> None:
    """z += scale w . x of each column x."""
    for k in range(0, len(columns), 4):
        a, b, c, d = scale * w[k], scale * w[k + 1], scale * w[k + 2], scale * w[k + 3]
        p, q, r, s = columns[k], columns[k + 1], columns[k + 2], columns[k + 3]
        for i in range(len(z)):
            z[i] += a * p[i] + b * q[i] + c * r[i] + d * s[i]


@jit
def errors(z: Any, sides: Any, weights: Any, out: Any) -> Any:
    """weight (sigma(z) - y) of samples, `sides` -1 of positives and 1 of negatives; returns the sums of their losses
    and of the errors."""
    loss, total, none = np.float32(0.0), np.float32(0.0), np.float32(0.0)
    for i in range(len(z)):
        wrong = sides[i] * z[i]
        ratio = exp(-abs(wrong))
        error = sides[i] * sigmoid(wrong, ratio) * weights[i]
        loss += weights[i] * (max(wrong, none) + log1p(ratio))
        total += error
        out[i] = error
    return loss, total


@jit
def dots(x0: Any, x1: Any, x2: Any, x3: Any, y0: Any, y1: Any, y2: Any, y3: Any, out: Any) -> None:
    """out[m, k] = y_m . x_k of four by four vectors, which are loaded once for four products."""
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = np.float32(0.0)
    c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = np.float32(0.0)
    for i in range(len(x0)):
        p, q, r, s = x0[i], x1[i], x2[i], x3[i]
        a, b, c, d = y0[i], y1[i], y2[i], y3[i]
        a0, a1, a2, a3 = a0 + a * p, a1 + a * q, a2 + a * r, a3 + a * s
        b0, b1, b2, b3 = b0 + b * p, b1 + b * q, b2 + b * r, b3 + b * s
        c0, c1, c2, c3 = c0 + c * p, c1 + c * q, c2 + c * r, c3 + c * s
        d0, d1, d2, d3 = d0 + d * p, d1 + d * q, d2 + d * r, d3 + d * s
    out[0, 0], out[0, 1], out[0, 2], out[0, 3] = a0, a1, a2, a3
    out[1, 0], out[1, 1], out[1, 2], out[1, 3] = b0, b1, b2, b3
    out[2, 0], out[2, 1], out[2, 2], out[2, 3] = c0, c1, c2, c3
    out[3, 0], out[3, 1], out[3, 2], out[3, 3] = d0, d1, d2, d3


@jit
def add_sums(x0: Any, x1: Any, x2: Any, x3: Any, y0: Any, y1: Any, y2: Any, y3: Any, factors: Any) -> None:
    """x_k += sum_m factors[m, k] y_m of four by four vectors, for the same reason."""
    a0, a1, a2, a3 = factors[0, 0], factors[0, 1], factors[0, 2], factors[0, 3]
    b0, b1, b2, b3 = factors[1, 0], factors[1, 1], factors[1, 2], factors[1, 3]
    c0, c1, c2, c3 = factors[2, 0], factors[2, 1], factors[2, 2], factors[2, 3]
    d0, d1, d2, d3 = factors[3, 0], factors[3, 1], factors[3, 2], factors[3, 3]
    for i in range(len(x0)):
        a, b, c, d = y0[i], y1[i], y2[i], y3[i]
        x0[i] += a * a0 + b * b0 + c * c0 + d * d0
        x1[i] += a * a1 + b * b1 + c * c1 + d * d1
        x2[i] += a * a2 + b * b2 + c * c2 + d * d2
        x3[i] += a * a3 + b * b3 + c * c3 + d * d3
