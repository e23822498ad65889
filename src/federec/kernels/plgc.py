"""PLGC inside the CPU kernels, number for number as `plugins.plgc` has it: a device's rows l are
mixed with the rows g that it received, e = a l + (1 - a) g, and kept from repeating themselves.

A batch is given by its distinct `rows` of the device's tables and how many `times` it holds each; what the device has
of a table is `scale` times it. With rows d of its own beside the shared ones features are l + d and g + d.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from federec.kernels.compiling import jit
from federec.kernels.cpu import distinct, floats, sigmoid


class Mixing(NamedTuple):
    """The plug-in's settings, and what all devices keep for it."""

    odds: Any
    """[N] log-odds of a, set by the kernel rule; empty: a is `weight`."""
    weight: np.float32
    pace: np.float32
    """How far log-odds go to their new value at each step."""
    beta: np.float32
    gamma: np.float32


class Mix(NamedTuple):
    """Where a thread keeps the device at hand."""

    settings: Mixing
    state: Any
    """The device's log-odds and a."""
    received: Any
    """Rows g."""
    seen: Any
    rows: Any
    times: Any
    positive: Any
    error: Any
    """Of a batch: see `cpu.distinct`; which of its rows are positives; the errors of its scores."""
    slope: Any
    own: Any
    others: Any
    """Of a batch, row by row: the gradient of the redundancy loss, own and received rows less their means."""
    cross: Any
    sums: Any
    """[dim, dim] and [3, dim]"""


def make_mix(settings: Mixing | None, rows: int, dim: int) -> Mix | None:
    """For any device with at most `rows` rows; None where nothing is mixed."""
    if settings is None:
        return None
    return Mix(
        settings,
        floats(2),
        floats(rows, dim),
        np.full(rows, -1, np.int32),
        np.empty(rows, np.int32),
        np.empty(rows, np.int32),
        np.empty(rows, np.bool_),
        floats(rows),
        floats(rows + 3, dim),
        floats(rows + 3, dim),
        floats(rows + 3, dim),
        floats(dim, dim),
        floats(3, dim),
    )


@jit
def _sigmoid(z: Any) -> Any:
    return sigmoid(z, np.float32(math.exp(-abs(z))))


@jit
def begin(mix: Any, user: int, table: Any) -> None:
    """The device's rows as it received them, and its a."""
    if mix is not None:
        mix.received[: len(table)] = table
        mix.state[1] = mix.settings.weight
        if len(mix.settings.odds):
            mix.state[0] = mix.settings.odds[user]
            mix.state[1] = _sigmoid(mix.state[0])


@jit
def end(mix: Any, user: int) -> None:
    """The device keeps its log-odds."""
    if mix is not None and len(mix.settings.odds):
        mix.settings.odds[user] = mix.state[0]


@jit
def follow(mix: Any, speed: Any, other_speed: Any) -> None:
    """The log-odds go towards those of the speeds at which own and received rows remove the error."""
    faster = np.float32(math.log(speed) - math.log(other_speed))
    mix.state[0] += mix.settings.pace * (faster - mix.state[0])
    mix.state[1] = _sigmoid(mix.state[0])


@jit
def weigh(
    mix: Any, local: Any, scale: Any, d: Any, own: Any, rows: Any, times: Any, positive: Any, w: Any, b: Any
) -> None:
    """One step of the kernel rule, where there is one: `PLGC.weigh`. Without rows of its own, d is None."""
    if len(mix.settings.odds) == 0:
        return
    dim, g, sums = local.shape[1], mix.received, mix.sums
    a = mix.state[1]
    total, trace, other = np.float32(0.0), np.float32(0.0), np.float32(0.0)
    sums.fill(0)
    for i in range(len(rows)):
        row, n = rows[i], np.float32(times[i])
        z, other_z, size, other_size = b, b, np.float32(0.0), np.float32(0.0)
        for k in range(dim):
            x, y = scale * local[row, k], g[row, k]
            if d is not None:
                x, y = x + own * d[row, k], y + own * d[row, k]
            z += w[k] * x
            other_z += w[k] * y
            size += x * x
            other_size += y * y
        residual = _sigmoid(a * z + (np.float32(1.0) - a) * other_z)
        if positive[row]:
            residual -= np.float32(1.0)
        residual *= n
        total += residual
        trace += n * (size + np.float32(1.0))
        other += n * (other_size + np.float32(1.0))
        for k in range(dim):
            x, y = scale * local[row, k], g[row, k]
            if d is not None:
                x, y = x + own * d[row, k], y + own * d[row, k]
            sums[0, k] += residual * x
            sums[1, k] += residual * y
    removed, other_removed = total * total, total * total
    for k in range(dim):
        removed += sums[0, k] * sums[0, k]
        other_removed += sums[1, k] * sums[1, k]
    least = np.float32(1e-12)
    follow(mix, max(removed, least) / trace, max(other_removed, least) / other)


@jit
def _centre(table: Any, scale: Any, rows: Any, out: Any, spread: Any) -> None:
    """Rows less their mean into `out`, zeros after them up to a multiple of four, and the root of each variance."""
    n, dim = len(rows), table.shape[1]
    share = np.float32(1.0 / n)
    spread.fill(0)
    for i in range(n):
        for k in range(dim):
            spread[k] += scale * table[rows[i], k]
    for i in range(n):
        for k in range(dim):
            out[i, k] = scale * table[rows[i], k] - spread[k] * share
    out[n : n + 3] = 0
    spread.fill(0)
    for i in range(n):
        for k in range(dim):
            spread[k] += out[i, k] * out[i, k]
    for k in range(dim):
        spread[k] = np.float32(math.sqrt(spread[k] * share + np.float32(1e-6)))


@jit
def redundancy(mix: Any, local: Any, scale: Any, rows: Any) -> Any:
    """The redundancy loss beta R of a batch's rows, and beta dR/dl into `mix.slope`: `plugins.plgc`. Sums over
    rows and dimensions take four rows at a time, which saves three of four loads and stores of what they share."""
    n, dim, slope = len(rows), local.shape[1], mix.slope
    if mix.settings.beta == 0:
        slope[:n] = 0
        return np.float32(0.0)
    own, others, cross = mix.own, mix.others, mix.cross
    along, spread, other_spread = mix.sums[0], mix.sums[1], mix.sums[2]
    _centre(local, scale, rows, own, spread)
    _centre(mix.received, np.float32(1.0), rows, others, other_spread)
    cross.fill(0)
    for i in range(0, n, 4):
        for m in range(dim):
            y, y1, y2, y3 = others[i, m], others[i + 1, m], others[i + 2, m], others[i + 3, m]
            for k in range(dim):
                cross[m, k] += y * own[i, k] + y1 * own[i + 1, k] + y2 * own[i + 2, k] + y3 * own[i + 3, k]
    share, value = np.float32(1.0 / n), np.float32(0.0)
    by = np.float32(2.0) * mix.settings.beta * share
    along.fill(0)
    for m in range(dim):
        for k in range(dim):
            x = cross[m, k] * share / (spread[k] * other_spread[m])
            away, part = (x - np.float32(1.0), np.float32(1.0)) if m == k else (x, mix.settings.gamma)
            value += part * away * away
            pull = by * part * away / spread[k]
            along[k] += pull * x / spread[k]
            cross[m, k] = pull / other_spread[m]
    for i in range(0, n, 4):
        for k in range(dim):
            slope[i, k], slope[i + 1, k] = -own[i, k] * along[k], -own[i + 1, k] * along[k]
            slope[i + 2, k], slope[i + 3, k] = -own[i + 2, k] * along[k], -own[i + 3, k] * along[k]
        for m in range(dim):
            y, y1, y2, y3 = others[i, m], others[i + 1, m], others[i + 2, m], others[i + 3, m]
            for k in range(dim):
                x = cross[m, k]
                slope[i, k] += y * x
                slope[i + 1, k] += y1 * x
                slope[i + 2, k] += y2 * x
                slope[i + 3, k] += y3 * x
    return mix.settings.beta * value


@jit
def step_mixed(
    mix: Any,
    local: Any,
    slots: Any,
    sides: Any,
    w: Any,
    gradient: Any,
    bias: bool,
    rate: Any,
    item_rate: Any,
    loss: Any,
) -> None:
    """One batch of a method with a linear score, as `linear._learn`: w and b, and the rows, step by these rates."""
    rows, times = mix.rows, mix.times
    rows = rows[: distinct(slots, mix.seen, rows, times)]
    positive, error, g, dim, n = mix.positive, mix.error, mix.received, local.shape[1], len(slots)
    for i in range(n):
        positive[slots[i]] = sides[i] < 0
    if rate > 0 or item_rate > 0:
        weigh(mix, local, np.float32(1.0), None, None, rows, times, positive, w, w[dim])
    a, share = mix.state[1], np.float32(1.0 / n)
    rest, total, off = np.float32(1.0) - a, np.float64(0.0), np.float32(0.0)
    gradient.fill(0)
    for i in range(len(rows)):
        row, z = rows[i], w[dim]
        for k in range(dim):
            z += w[k] * (a * local[row, k] + rest * g[row, k])
        wrong = -z if positive[row] else z
        total += times[i] * (max(wrong, np.float32(0.0)) + math.log1p(math.exp(-abs(wrong))))
        scale = _sigmoid(wrong) * np.float32(times[i]) * share
        scale = -scale if positive[row] else scale
        off += scale
        error[i] = scale
        for k in range(dim):
            gradient[k] += scale * (a * local[row, k] + rest * g[row, k])
    total *= share
    if item_rate > 0:
        total += redundancy(mix, local, np.float32(1.0), rows)
        for i in range(len(rows)):
            row, pull = rows[i], a * error[i]
            for k in range(dim):
                local[row, k] -= item_rate * (pull * w[k] + mix.slope[i, k])
    if rate > 0:
        gradient[dim] = off if bias else np.float32(0.0)
        for k in range(dim + 1):
            w[k] -= rate * gradient[k]
    loss[0] += total
    loss[1] += 1


@jit
def blend(scores: Any, w: Any, shared: Any, items: Any, a: Any) -> None:
    """Scores with own rows become those with mixed ones."""
    dim = shared.shape[1]
    for place in range(len(items)):
        z = w[dim]
        for k in range(dim):
            z += w[k] * shared[items[place], k]
        scores[place] = a * scores[place] + (np.float32(1.0) - a) * z
