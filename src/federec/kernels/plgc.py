"""PLGC inside the CPU kernels, number for number as `plugins.plgc` has it: a device's rows l are
mixed with the rows g that it received, e = a l + (1 - a) g, and kept from repeating themselves.

The distinct rows of a batch lie side by side as columns (`kernels.columns`); what the device has of a table is `scale`
times it. With rows d of its own beside the shared ones features are l + d and g + d.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from federec.kernels.columns import add_products, add_sums, dots, errors, gather, height, scatter, shaped, width
from federec.kernels.compiling import jit
from federec.kernels.cpu import clear, collect, copy, floats, sigmoid


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
    """[rows, dim] rows g."""
    seen: Any
    rows: Any
    times: Any
    """Of a batch: see `cpu.collect`."""
    local: Any
    g: Any
    own: Any
    others: Any
    slope: Any
    """Columns of a batch, before they are shaped: local and received rows, both less their means, and the gradient of
    the redundancy loss."""
    cross: Any
    sums: Any
    w: Any
    """[height, height], [3, height] and [height]"""
    z: Any
    other_z: Any
    mixed_z: Any
    error: Any
    weights: Any
    sides: Any
    """Of a batch, column by column: logits with local, received and mixed rows; the rest as `columns.errors` has it."""


def make_mix(settings: Mixing | None, rows: int, dim: int) -> Mix | None:
    """For any device with at most `rows` rows; None where nothing is mixed."""
    if settings is None:
        return None
    tall, wide = height(dim), width(rows)
    return Mix(
        settings=settings,
        state=floats(2),
        received=floats(rows, dim),
        seen=np.full(rows, -1, np.int32),
        rows=np.empty(rows, np.int32),
        times=np.empty(rows, np.int32),
        local=floats(tall * wide),
        g=floats(tall * wide),
        own=floats(tall * wide),
        others=floats(tall * wide),
        slope=floats(tall * wide),
        cross=floats(tall, tall),
        sums=floats(3, tall),
        w=floats(tall),
        z=floats(wide),
        other_z=floats(wide),
        mixed_z=floats(wide),
        error=floats(wide),
        weights=floats(wide),
        sides=floats(wide),
    )


@jit
def _sigmoid(z: Any) -> Any:
    return sigmoid(z, np.float32(math.exp(-abs(z))))


@jit
def begin(mix: Any, user: int, table: Any) -> None:
    """The device's rows as it received them, and its a."""
    if mix is not None:
        for i in range(len(table)):
            copy(table[i], mix.received[i])
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
def meet(mix: Any, rows: Any) -> None:
    """The received rows of a batch as columns, as they are and less their means; nothing where `mix` is None."""
    if mix is not None:
        dim = mix.received.shape[1]
        g = shaped(mix.g, dim, len(rows))
        gather(mix.received, rows, g)
        if mix.settings.beta > 0:
            _centre(g, np.float32(1.0), len(rows), shaped(mix.others, dim, len(rows)), mix.sums[2])


@jit
def logits(mix: Any, c: Any, scale: Any, d: Any, own: Any, n: int, w: Any, b: Any) -> None:
    """The scores of a batch's n rows, with local and with received ones, into `mix`. Without rows d, d is None."""
    z, other_z = mix.z[: c.shape[1]], mix.other_z[: c.shape[1]]
    z.fill(b)
    if d is not None:
        add_products(w, own, d, z)
    for i in range(len(z)):
        other_z[i] = z[i]
    add_products(w, scale, c, z)
    add_products(w, np.float32(1.0), shaped(mix.g, mix.received.shape[1], n), other_z)


@jit
def mixed_errors(mix: Any, sides: Any, weights: Any) -> Any:
    """`columns.errors` of mixed rows, of the logits that `logits` left, into `mix.error`."""
    wide = len(weights)
    a, local, other, z = mix.state[1], mix.z[:wide], mix.other_z[:wide], mix.mixed_z[:wide]
    rest = np.float32(1.0) - a
    for i in range(wide):
        z[i] = a * local[i] + rest * other[i]
    return errors(z, sides, weights, mix.error[:wide])


@jit
def weigh(mix: Any, c: Any, scale: Any, d: Any, own: Any, n: int, weights: Any, sides: Any, count: int) -> None:
    """One step of the kernel rule, where there is one: `PLGC.weigh`, after `logits`. The n rows stand for `count`
    samples; `weights` are their shares of them."""
    if len(mix.settings.odds) == 0:
        return
    error, g = mix.error[: c.shape[1]], shaped(mix.g, mix.received.shape[1], n)
    _, total = mixed_errors(mix, sides, weights)
    zero, samples = np.float32(0.0), np.float32(count)
    removed, other_removed, trace, other = total * total, total * total, zero, zero
    for k in range(mix.received.shape[1]):
        ck, gk, dk = c[k], g[k], c[k] if d is None else d[k]
        pull, other_pull = zero, zero
        for i in range(len(error)):
            x, y = scale * ck[i], gk[i]
            if d is not None:
                x, y = x + own * dk[i], y + own * dk[i]
            pull += error[i] * x
            other_pull += error[i] * y
            trace += weights[i] * x * x
            other += weights[i] * y * y
        removed += pull * pull
        other_removed += other_pull * other_pull
    least, square = np.float32(1e-12), samples * samples
    speed = max(square * removed, least) / (trace + np.float32(1.0))
    follow(mix, speed, max(square * other_removed, least) / (other + np.float32(1.0)))


@jit
def _centre(table: Any, scale: Any, n: int, out: Any, spread: Any) -> None:
    """n columns less their mean into `out`, and the root of each variance."""
    share = np.float32(1.0 / n)
    for k in range(len(table)):
        values, centred, total = table[k], out[k], np.float32(0.0)
        for i in range(len(values)):
            total += values[i]
        mean, squares = scale * total * share, np.float32(0.0)
        for i in range(len(values)):
            centred[i] = scale * values[i] - mean
        centred[n:] = 0
        for i in range(len(values)):
            squares += centred[i] * centred[i]
        spread[k] = np.float32(math.sqrt(squares * share + np.float32(1e-6)))


@jit
def _products(x: Any, y: Any, out: Any) -> None:
    """out[m, k] = y_m . x_k"""
    for m in range(0, len(y), 4):
        for k in range(0, len(x), 4):
            dots(x[k], x[k + 1], x[k + 2], x[k + 3], y[m], y[m + 1], y[m + 2], y[m + 3], out[m : m + 4, k : k + 4])


@jit
def _add_products(factors: Any, y: Any, out: Any) -> None:
    """out_k += sum_m factors[m, k] y_m"""
    for k in range(0, len(out), 4):
        a, b, c, d = out[k], out[k + 1], out[k + 2], out[k + 3]
        for m in range(0, len(y), 4):
            add_sums(a, b, c, d, y[m], y[m + 1], y[m + 2], y[m + 3], factors[m : m + 4, k : k + 4])


@jit
def redundancy(mix: Any, c: Any, scale: Any, n: int) -> Any:
    """The redundancy loss beta R of a batch's n rows, and beta dR/dl into `mix.slope`: `plugins.plgc`."""
    dim, zero = mix.received.shape[1], np.float32(0.0)
    slope = shaped(mix.slope, dim, n)
    if mix.settings.beta == 0:
        slope.fill(0)
        return zero
    own, others, cross = shaped(mix.own, dim, n), shaped(mix.others, dim, n), mix.cross
    along, spread, other_spread = mix.sums[0], mix.sums[1], mix.sums[2]
    _centre(c, scale, n, own, spread)
    _products(own, others, cross)
    share, value = np.float32(1.0 / n), zero
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
    for k in range(dim):
        to, x, back = slope[k], own[k], along[k]
        for i in range(len(to)):
            to[i] = -x[i] * back
    _add_products(cross, others, slope)
    return mix.settings.beta * value


@jit
def step_mixed(
    mix: Any,
    table: Any,
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
    rows, dim, one, zero = mix.rows, table.shape[1], np.float32(1.0), np.float32(0.0)
    n = collect(slots, 1, 0, mix.seen, rows, mix.times)
    rows, local, g = rows[:n], shaped(mix.local, dim, n), shaped(mix.g, dim, n)
    weights, side, error = mix.weights[: g.shape[1]], mix.sides[: g.shape[1]], mix.error[: g.shape[1]]
    weights.fill(0)
    for i in range(n):
        weights[i] = np.float32(mix.times[i]) / np.float32(len(slots))
    for i in range(len(slots)):
        side[mix.seen[slots[i]]] = sides[i]
    clear(mix.seen, rows)
    copy(w, mix.w[:dim])
    gather(table, rows, local)
    meet(mix, rows)
    logits(mix, local, one, None, None, n, mix.w, w[dim])
    if rate > 0 or item_rate > 0:
        weigh(mix, local, one, None, None, n, weights, side, len(slots))
    total, off = mixed_errors(mix, side, weights)
    a = mix.state[1]
    rest = one - a
    if rate > 0:
        for k in range(dim):
            x, y, pull = local[k], g[k], zero
            for i in range(len(error)):
                pull += error[i] * (a * x[i] + rest * y[i])
            gradient[k] = pull
        gradient[dim] = off if bias else zero
    if item_rate > 0:
        total += redundancy(mix, local, one, n)
        slope = shaped(mix.slope, dim, n)
        for k in range(dim):
            x, down, pull = local[k], slope[k], a * w[k]
            for i in range(len(error)):
                x[i] -= item_rate * (pull * error[i] + down[i])
        scatter(local, rows, table)
    if rate > 0:
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
