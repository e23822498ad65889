"""The rows of a batch as columns: value k of row i lies at [k, i]. Loops over rows then run along memory and take 16
rows at once; loops over the few values of one row would end before that pays.

Dimensions are filled up with zeros to a multiple of four, and columns to a multiple of 32, so that no loop has a rest.
What fills up has weight 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from federec.kernels.compiling import jit
from federec.kernels.cpu import exp, log1p, sigmoid

_TALL = 4
_WIDE = 32


def height(dim: int) -> int:
    """Dimensions with those that fill up."""
    return -(-dim // _TALL) * _TALL


def width(rows: int) -> int:
    """Columns of so many rows with those that fill up."""
    return -(-rows // _WIDE) * _WIDE


@jit
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
