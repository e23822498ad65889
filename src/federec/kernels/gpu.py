"""Pieces of the GPU's kernels, in Triton: the random streams and the drawing of samples, number for number as in
`cohort.draw`.

Needs the package triton, which comes with torch for CUDA: import this only where it is there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from federec import streams

jit = triton.jit
many = triton.jit(do_not_specialize=["asked", "base", "count", "devices", "lost", "most", "most_pages", "shuffled"])
"""Of these numbers, other in every round, the compiler must not make special cases."""

_GOLDEN = tl.constexpr(streams.GOLDEN & 0xFFFF_FFFF_FFFF_FFFF)
_FIRST = tl.constexpr(0xBF58_476D_1CE4_E5B9)
_SECOND = tl.constexpr(0x94D0_49BB_1331_11EB)
_NEGATIVES = tl.constexpr(streams.NEGATIVES)
_LAPLACE = tl.constexpr(streams.LAPLACE)


class Drawn(NamedTuple):
    """Who plays, the longest first, and the samples of all of them."""

    users: Any
    places: Any
    """Of these users among those who were asked to play."""
    keys: Any
    """Of their random streams in the round."""
    first: Any
    counts: Any
    """A device's part of the samples."""
    samples: Any
    """2 * item, plus 1 for a positive."""
    order: Any
    """[epochs, shuffled] places of samples after shuffling, of the devices that need it."""


class Histories(NamedTuple):
    """What all devices learn from: `cohort.draw.Devices`."""

    ptr: Any
    train: Any
    closed_ptr: Any
    gaps: Any


class Outcome(NamedTuple):
    """Where a round puts what comes of it."""

    total: Any
    """[n_items, d] the sum of the changes of rows."""
    figures: Any
    """[5, devices] see `report`."""


class Batch(NamedTuple):
    """Samples of one device that follow one another: as they were drawn, or `shuffled`."""

    samples: Any
    order: Any
    first: Any
    size: Any
    shuffled: Any


@jit
def bits(key, draw):
    """`streams.bits`."""
    z = draw.to(tl.uint64) * _GOLDEN + key.to(tl.uint64, bitcast=True)
    z = (z ^ (z >> 30)) * _FIRST
    z = (z ^ (z >> 27)) * _SECOND
    return z ^ (z >> 31)


@many
def stream_keys(numbers, keys, count, base, BLOCK: tl.constexpr):
    """`streams.keys` of the devices with these numbers."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number = tl.load(numbers + at, mask=at < count, other=0)
    tl.store(keys + at, bits(tl.zeros_like(number) + base, number).to(tl.int64, bitcast=True), mask=at < count)


@many
def draw(
    users, keys, first, owner, histories, samples, count, n_items, negatives, halvings, BLOCK: tl.constexpr
):  # fmt: skip
    """Each device's positives, each followed by its negatives, into `samples`: 2 * item, plus 1 for a positive."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = at < count
    device = tl.load(owner + at, mask=real, other=0)
    user = tl.load(users + device)
    position = at - tl.load(first + device)
    closed = tl.load(histories.closed_ptr + user)
    n_closed = tl.load(histories.closed_ptr + user + 1) - closed
    n_open = n_items - n_closed
    stride = tl.where(n_open > 0, negatives + 1, 1)
    which = position // stride
    part = position % stride
    draws = (which * negatives + part - 1).to(tl.int64) + _NEGATIVES
    rank = (((bits(tl.load(keys + device), draws) >> 32) * n_open.to(tl.uint64)) >> 32).to(tl.int64)
    low = tl.zeros_like(n_closed)  # the rank-th open item is rank + #{k : gaps[k] <= rank}, by bisection
    high = n_closed
    for _ in range(halvings):
        middle = (low + high) >> 1
        going = low < high
        right = going & (tl.load(histories.gaps + closed + middle, mask=real & going, other=0) <= rank)
        low = tl.where(right, middle + 1, low)
        high = tl.where(going & (right == 0), middle, high)
    positive = tl.load(histories.train + tl.load(histories.ptr + user) + which, mask=real, other=0)
    sample = tl.where(part == 0, 2 * positive + 1, 2 * (rank + low))
    tl.store(samples + at, sample.to(tl.int32), mask=real)


@jit
def _shuffled(keys, first, owner, sample, real, base):
    """The random number, of 31 bits, by which a sample is sorted among those of its device (`Samples.order`), and the
    device. Its draws count from `base`."""
    device = tl.load(owner + sample, mask=real, other=0)
    position = (sample - tl.load(first + device)).to(tl.int64)
    return (bits(tl.load(keys + device), position + base) >> 33).to(tl.int32), device


@many
def shuffle_keys(keys, first, owner, out, count, base, lost, BLOCK: tl.constexpr):
    """What sorts the samples of all devices at once: the device's number above its random number, whose lowest bits are
    `lost`."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    random, device = _shuffled(keys, first, owner, at, at < count, base)
    tl.store(out + at, (device << (31 - lost)) | (random >> lost), mask=at < count)


@many
def settle_ties(keys, first, owner, known, order, out, count, base, BLOCK: tl.constexpr):
    """The order of samples that were sorted by keys of which bits are lost: `known`, sorted, and the samples in this
    `order`. A sample passes those on its left whose lost bits are larger, and those on its right pass it whose bits are
    smaller."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = at < count
    key = tl.load(known + at, mask=real, other=0)
    sample = tl.load(order + at, mask=real, other=0).to(tl.int32)
    random, _ = _shuffled(keys, first, owner, sample, real, base)
    place = at
    for side in tl.static_range(-1, 2, 2):
        beside = at + side
        same = real
        while tl.max(same.to(tl.int32), 0) > 0:
            same = same & (beside >= 0) & (beside < count)
            same = same & (tl.load(known + beside, mask=same, other=-1) == key)
            other = tl.load(order + beside, mask=same, other=0).to(tl.int32)
            its, _ = _shuffled(keys, first, owner, other, same, base)
            if side < 0:
                place -= (same & (its > random)).to(tl.int32)
            else:
                place += (same & (its < random)).to(tl.int32)
            beside += side
    tl.store(out + place, sample, mask=real)


@jit
def error_of(z, label, real, size):
    """(sigma(z) - y) / n and the cross-entropy / n of a tile's samples; 0 where there is none."""
    e = tl.exp(-tl.abs(z))
    sigma = tl.where(z >= 0, 1 / (1 + e), e / (1 + e))
    loss = tl.maximum(z, 0.0) - z * label + tl.log(1 + e)
    return tl.where(real, (sigma - label) / size, 0.0), tl.where(real, loss / size, 0.0)


@jit
def of_batch(batch, at):
    """Which of the places `at` of a batch there are, and the samples in them."""
    real = at < batch.size
    at += batch.first
    if batch.shuffled:
        at = tl.load(batch.order + at, mask=real, other=0)
    return real, tl.load(batch.samples + at, mask=real, other=0)


@jit
def cells(item, k, DIM: tl.constexpr):
    """Where the rows of items lie in a table, value by value."""
    return item[:, None] * DIM + k[None, :]


@jit
def values(which, k, DIM: tl.constexpr):
    """The values of these rows, without what pads them to a power of two."""
    return which[:, None] & (k < DIM)[None, :]


@jit
def unmark(mark, item, real, device):
    """Which of these items the device had marked. They are no more, so each is told once."""
    return real & (tl.atomic_xchg(mark + item, 0, mask=real, sem="relaxed") == device + 1)


@jit
def laplace(quantiles, key, item, k, DIM: tl.constexpr, PART: tl.constexpr = 0):
    """A device's standard Laplace noise for the rows of items, as `stages.noise.drawn` has it for what is the PART-th
    part of an update."""
    word = item.to(tl.int64)[:, None] * ((DIM + 3) // 4) + (k // 4)[None, :]
    random = bits(key, word + (_LAPLACE + (PART << 36))) >> (16 * (k % 4)).to(tl.uint64)[None, :]
    return tl.load(quantiles + ((random & 0xFFFF) ^ 0x8000).to(tl.int32))


@jit
def send(total, place, change, there):
    """Add the changes of rows to the total; returns how many rows, and how many values, are not zero."""
    tl.atomic_add(total + place, change, mask=there, sem="relaxed")
    changed = tl.sum((change != 0).to(tl.int32), 1)
    return tl.sum((changed > 0).to(tl.int32), 0), tl.sum(changed, 0)


@jit
def report(figures, device, devices, loss, steps, held, rows, values):
    """A device's figures [5, devices]: the sum of its losses, how many, rows it held, rows and values it changed."""
    tl.store(figures + device, loss)
    tl.store(figures + devices + device, steps)
    tl.store(figures + 2 * devices + device, held)
    tl.store(figures + 3 * devices + device, rows)
    tl.store(figures + 4 * devices + device, values)
