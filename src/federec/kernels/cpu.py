"""Pieces of the CPU kernels: the random streams and the drawing of samples, number for number as in `cohort.draw`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np

from federec import streams

_OPTIONS: dict[str, Any] = {"fastmath": True, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}

jit: Any = numba.njit(**_OPTIONS | {"no_cpython_wrapper": True})
"""A piece of kernels, which Python does not call: without a way in for it, compilation takes less time and memory."""


def sources(folder: Path) -> str:
    """A digest of all sources in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


_SOURCES = sources(Path(__file__).parent)


def kernel(function: Any) -> Any:
    """Compiled code that is kept on disk. Numba would keep it until the kernel's own file changes; but pieces from
    other files are compiled into it, and two kernels with unlike versions of one piece do not go together."""
    compiled: Any = numba.njit(**_OPTIONS, cache=True)(function)
    kept = compiled._cache._cache_file
    kept._source_stamp = _SOURCES
    kept._load_index = _readable(kept._load_index)
    return compiled


def _readable(load: Callable[[], dict[Any, str]]) -> Callable[[], dict[Any, str]]:
    """An index of compiled code may name types that are no more; numba would fail before it sees that it is old."""

    def index() -> dict[Any, str]:
        try:
            return load()
        except (AttributeError, ImportError):
            return {}

    return index


_GOLDEN = np.uint64(streams.GOLDEN & 0xFFFF_FFFF_FFFF_FFFF)
_FIRST = np.uint64(0xBF58_476D_1CE4_E5B9)
_SECOND = np.uint64(0x94D0_49BB_1331_11EB)
_NEGATIVES = np.uint64(streams.NEGATIVES)
_SHUFFLE = np.uint64(streams.SHUFFLE)
_LAPLACE = np.uint64(streams.LAPLACE)

DIGIT = 12
"""The most first bits of a random key by which samples are sorted into bins."""


def floats(*sizes: int) -> Any:
    """Zeros that begin with a line of memory: reading 16 at once would else take two lines each time."""
    size = math.prod(sizes)
    room = np.zeros(size + 15, np.float32)
    start = -(room.ctypes.data // 4) % 16
    return room[start : start + size].reshape(sizes)


class Histories(NamedTuple):
    """What all devices learn from: `cohort.draw.Devices` as arrays."""

    ptr: Any
    train: Any
    closed_ptr: Any
    gaps: Any


@jit
def even(count: int, most: int) -> int:
    """The size of parts, about the same for all, of at most so many."""
    parts = max(1, (count + most - 1) // most)
    return max(1, (count + parts - 1) // parts)


@jit
def bits(key: Any, draw: Any) -> Any:
    """`streams.bits`, for one draw."""
    z = draw * _GOLDEN + key
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@jit
def exp(x: Any) -> Any:
    """e^x of x <= 0, as 2^n 2^f with a polynomial for 2^f; relative error 2e-7 at -1, 4e-6 at -86. A call of `math.exp`
    would keep the compiler from taking many x at once."""
    y = max(x, np.float32(-87.0)) * np.float32(1.4426950408889634)
    n = np.float32(math.floor(y + np.float32(0.5)))
    f, power = y - n, np.int32((np.int32(n) + 127) << 23).view(np.float32)
    p = np.float32(1.5403530e-4) * f + np.float32(1.3333558e-3)
    p = (p * f + np.float32(9.6181291e-3)) * f + np.float32(5.5504109e-2)
    p = (p * f + np.float32(2.4022651e-1)) * f + np.float32(6.9314718e-1)
    return (p * f + np.float32(1.0)) * power


@jit
def log1p(x: Any) -> Any:
    """log(1 + x) of 0 <= x <= 1, by a polynomial for the same reason; relative error 4e-7."""
    p = np.float32(-8.5746758e-3) * x + np.float32(4.4214193e-2)
    p = (p * x + np.float32(-1.0785368e-1)) * x + np.float32(1.7757024e-1)
    p = (p * x + np.float32(-2.4499612e-1)) * x + np.float32(3.3276176e-1)
    return ((p * x + np.float32(-4.9997449e-1)) * x + np.float32(9.9999982e-1)) * x


@jit
def list_open(gaps: Any, n_items: int, open_items: Any) -> None:
    """Write the open items in order. The k-th closed one is gaps[k] + k."""
    rank = 0
    for k in range(len(gaps) + 1):
        end = gaps[k] if k < len(gaps) else n_items - k  # those between the closed items k - 1 and k
        for r in range(rank, end):
            open_items[r] = r + k
        rank = end


@jit
def open_item(gaps: Any, rank: int) -> int:
    """The rank-th open item: rank + #{k : gaps[k] <= rank}, by bisection."""
    low, high = 0, len(gaps)
    while low < high:
        middle = (low + high) >> 1
        if gaps[middle] <= rank:
            low = middle + 1
        else:
            high = middle
    return rank + low


@jit
def draw(positives: Any, gaps: Any, n_items: int, key: Any, negatives: int, items: Any, open_items: Any) -> int:
    """Each positive followed by its negatives, into `items`; returns how many samples."""
    n_open = n_items - len(gaps)
    each = negatives if n_open > 0 else 0
    ranks = items[len(positives) : (1 + each) * len(positives)]  # read before what is written comes that far
    for slot in range(len(ranks)):
        random = bits(key, _NEGATIVES + np.uint64(slot)) >> np.uint64(32)
        ranks[slot] = np.int32((random * np.uint64(n_open)) >> np.uint64(32))
    listed = len(ranks) * 24 > n_items  # listing all open items once costs less than bisecting for each
    if listed:
        list_open(gaps, n_items, open_items)
    count, slot = 0, 0
    for positive in positives:
        items[count] = positive
        count += 1
        for _ in range(each):
            items[count] = open_items[ranks[slot]] if listed else open_item(gaps, ranks[slot])
            slot += 1
            count += 1
    return count


@jit
def shuffled(key: Any, epoch: int, count: int, order: Any, keys: Any, spare: Any, spare_keys: Any, bins: Any) -> None:
    """Positions 0..count-1 by random key, ties by position (`Samples.order`). Keys are spread evenly: their first bits
    say nearly where each belongs, and insertion puts the few right that share them."""
    base = _SHUFFLE + (np.uint64(epoch) << np.uint64(32))
    digits = 0
    while digits < DIGIT and (1 << digits) < 2 * count:
        digits += 1
    shift, starts = 31 - digits, bins[: 1 << digits]
    starts.fill(0)
    for position in range(count):
        keys[position] = np.int32(bits(key, base + np.uint64(position)) >> np.uint64(33))
    for position in range(count):
        starts[keys[position] >> shift] += 1
    total = 0
    for digit in range(len(starts)):
        here = starts[digit]
        starts[digit] = total
        total += here
    for position in range(count):
        digit = keys[position] >> shift
        to = starts[digit]
        starts[digit] = to + 1
        spare[to] = position
        spare_keys[to] = keys[position]
    for position in range(count):
        to, own = position, spare_keys[position]
        while to > 0 and keys[to - 1] > own:
            keys[to], order[to] = keys[to - 1], order[to - 1]
            to -= 1
        keys[to], order[to] = own, spare[position]


@jit
def distinct(slots: Any, seen: Any, rows: Any, times: Any) -> int:
    """The distinct rows of a batch and how often it holds each; returns how many. `seen` is all -1 between calls."""
    count = 0
    for slot in slots:
        if seen[slot] < 0:
            seen[slot] = count
            rows[count] = slot
            times[count] = 0
            count += 1
        times[seen[slot]] += 1
    for i in range(count):
        seen[rows[i]] = -1
    return count


@jit
def laplace(values: Any, ids: Any, key: Any, scale: Any, quantiles: Any) -> None:
    """Add a device's Laplace noise to the rows [U, width] of items `ids`, as `stages.noise.laplace` draws it."""
    width = values.shape[1]
    words = np.uint64((width + 3) // 4)
    for row in range(len(values)):
        first = _LAPLACE + np.uint64(ids[row]) * words
        for word in range(words):
            random = bits(key, first + word)
            for k in range(4 * word, min(4 * word + 4, width)):
                values[row, k] += scale * quantiles[(random & np.uint64(0xFFFF)) ^ np.uint64(0x8000)]
                random >>= np.uint64(16)


@jit
def send(ids: Any, table: Any, shared: Any, total: Any, sent: Any) -> None:
    """Add the changes of a device's rows to the total. `sent`: rows held, rows changed, values changed."""
    for row in range(len(table)):
        item, changed = ids[row], 0
        for k in range(table.shape[1]):
            change = table[row, k] - shared[item, k]
            total[item, k] += change
            changed += change != 0
        sent[1] += changed > 0
        sent[2] += changed
    sent[0] = len(table)
