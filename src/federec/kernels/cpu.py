"""Pieces of the CPU kernels: the random streams and the drawing of samples, number for number as in `cohort.draw`."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from federec import streams

jit: Any = numba.njit(fastmath=True, cache=True, nogil=True)
parallel: Any = numba.njit(fastmath=True, cache=True, nogil=True, parallel=True)

_GOLDEN = np.uint64(streams.GOLDEN & 0xFFFF_FFFF_FFFF_FFFF)
_FIRST = np.uint64(0xBF58_476D_1CE4_E5B9)
_SECOND = np.uint64(0x94D0_49BB_1331_11EB)
_NEGATIVES = np.uint64(streams.NEGATIVES)
_SHUFFLE = np.uint64(streams.SHUFFLE)

DIGIT = 11
"""Bits that one pass of the radix sort looks at; three passes cover the 31-bit keys."""


@jit
def bits(key: Any, draw: Any) -> Any:
    """`streams.bits`, for one draw."""
    z = draw * _GOLDEN + key
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@jit
def list_open(gaps: Any, n_items: int, open_items: Any) -> None:
    """Write the open items in order. The k-th closed one is gaps[k] + k."""
    count, nearest = 0, 0
    for item in range(n_items):
        if nearest < len(gaps) and gaps[nearest] + nearest == item:
            nearest += 1
        else:
            open_items[count] = item
            count += 1


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
    count, slot = 0, np.uint64(0)
    listed = each * len(positives) * 8 > n_items  # listing all open items once costs less than bisecting for each
    if listed:
        list_open(gaps, n_items, open_items)
    for positive in positives:
        items[count] = positive
        count += 1
        for _ in range(each):
            rank = ((bits(key, _NEGATIVES + slot) >> np.uint64(32)) * np.uint64(n_open)) >> np.uint64(32)
            items[count] = open_items[rank] if listed else open_item(gaps, np.int64(rank))
            slot += np.uint64(1)
            count += 1
    return count


@jit
def shuffled(key: Any, epoch: int, count: int, order: Any, keys: Any, spare: Any, spare_keys: Any, bins: Any) -> None:
    """Positions 0..count-1 by random key, ties by position (`Samples.order`): a stable radix sort."""
    base = _SHUFFLE + (np.uint64(epoch) << np.uint64(32))
    for position in range(count):
        keys[position] = np.int32(bits(key, base + np.uint64(position)) >> np.uint64(33))
        order[position] = position
    mask = np.int32((1 << DIGIT) - 1)
    for shift in range(0, 33, DIGIT):
        bins[:] = 0
        for position in range(count):
            bins[(keys[position] >> shift) & mask] += 1
        total = 0
        for digit in range(len(bins)):
            here = bins[digit]
            bins[digit] = total
            total += here
        for position in range(count):
            digit = (keys[position] >> shift) & mask
            to = bins[digit]
            bins[digit] = to + 1
            spare[to] = order[position]
            spare_keys[to] = keys[position]
        for position in range(count):
            order[position] = spare[position]
            keys[position] = spare_keys[position]
