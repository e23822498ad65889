"""What the machine can do at best, on one thread, or with some work in each of several.

Bandwidth: the triad a = b + s c over three arrays of 64 MB, far beyond any cache; 12 bytes a value counted.
Arithmetic: products of two float32 matrices of 1,024 by 1,024 by the BLAS that comes with NumPy.
Some arithmetic: x = x s + t over 64 float32 values that never leave the registers or the first cache.
The best of several tries of each counts.
"""

from __future__ import annotations

import time

import numba
import numpy as np
from threadpoolctl import threadpool_limits


@numba.njit(fastmath=True)
def _triad(a, b, c, s):
    for i in range(len(a)):
        a[i] = b[i] + s * c[i]


@numba.njit(fastmath=True, nogil=True)
def _multiply_add(x, s, t, times):
    y = np.empty(64, np.float32)
    for k in range(64):
        y[k] = x[k]
    for _ in range(times):
        for k in range(64):
            y[k] = y[k] * s + t
    for k in range(64):
        x[k] = y[k]


def bandwidth(tries: int = 5) -> float:
    """Bytes a second."""
    a, b, c = (np.ones(1 << 24, np.float32) for _ in range(3))
    return max(12 * len(a) / _seconds(_triad, a, b, c, np.float32(0.5)) for _ in range(tries))


def arithmetic(tries: int = 5, size: int = 1024) -> float:
    """Operations a second."""
    x, y, out = (np.ones((size, size), np.float32) for _ in range(3))
    with threadpool_limits(1):
        return max(2 * size**3 / _seconds(np.matmul, x, y, out) for _ in range(tries))


def some_arithmetic(parts: int) -> None:
    """One of so many parts of the same arithmetic."""
    _multiply_add(np.ones(64, np.float32), np.float32(0.5), np.float32(0.25), 160_000_000 // parts)


def _seconds(function, *arguments) -> float:
    began = time.process_time()
    function(*arguments)
    return time.process_time() - began
