"""What the machine can do at best, on one thread, or with some work in each of several.

Bandwidth: the triad a = b + s c over three arrays of 64 MB, far beyond any cache; 12 bytes a value counted.
Arithmetic: x = x s + t over 64 float32 values that never leave the registers or the first cache, 2 operations each.
The best of several tries of each counts.
"""

from __future__ import annotations

import time

import numba
import numpy as np


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


def arithmetic(tries: int = 5, times: int = 4_000_000) -> float:
    """Operations a second."""
    x, s, t = np.ones(64, np.float32), np.float32(0.5), np.float32(0.25)
    return max(2 * 64 * times / _seconds(_multiply_add, x, s, t, times) for _ in range(tries))


def some_arithmetic(parts: int) -> None:
    """One of so many parts of the same arithmetic."""
    _multiply_add(np.ones(64, np.float32), np.float32(0.5), np.float32(0.25), 160_000_000 // parts)


def _seconds(function, *arguments) -> float:
    began = time.process_time()
    function(*arguments)
    return time.process_time() - began
