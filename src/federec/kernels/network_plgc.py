"""PLGC on networks inside the CPU kernel (`plugins.plgc`, `kernels.plgc`): the network sees mixed rows, and the kernel
rule compares the features, t of `kernels.network`, of a device's own rows with those of the rows that it received.
Without a product: v of the network is empty."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from federec.kernels.columns import gather, shaped
from federec.kernels.compiling import jit
from federec.kernels.cpu import exp, floats, sigmoid
from federec.kernels.network import predict
from federec.kernels.plgc import Mix, Mixing, follow, make_mix, meet, redundancy


class NetworkMix(NamedTuple):
    """Where a thread keeps the device at hand, and the rows of its step."""

    mix: Mix
    mixed: Any
    """[rows, dim] of the step."""
    places: Any
    """0, 1, 2, ..."""
    tops: Any
    """[3, rows, width] t of own, received and mixed rows."""
    residual: Any
    """[rows] logits of mixed rows, then errors."""
    times: Any
    """[rows] how many samples each stands for."""
    sum: Any
    """[width]"""


def make_network_mix(settings: Mixing | None, rows: int, step: int, dim: int, width: int) -> NetworkMix | None:
    """For any device with at most `rows` rows, `step` of them in a step, and t so wide; None: nothing is mixed."""
    mix = make_mix(settings, rows, dim)
    if mix is None:
        return None
    places = np.arange(step, dtype=np.int32)
    return NetworkMix(mix, floats(step, dim), places, floats(3, step, width), floats(step), floats(step), floats(width))


@jit
def mix_rows(mixing: Any, local: Any, rows: Any) -> None:
    """e = a l + (1 - a) g of a step's rows."""
    received, a = mixing.mix.received, mixing.mix.state[1]
    rest = np.float32(1.0) - a
    for i in range(len(rows)):
        row, out = rows[i], mixing.mixed[i]
        for k in range(len(out)):
            out[k] = a * local[row, k] + rest * received[row, k]


@jit
def _speed(features: Any, residual: Any, times: Any, total: Any) -> Any:
    """r'K r / tr K of the rows' features; a row counts so many times."""
    removed, trace = np.float32(0.0), np.float32(0.0)
    total.fill(0)
    for i in range(len(residual)):
        size = np.float32(1.0)
        for k in range(len(total)):
            total[k] += residual[i] * features[i, k]
            size += features[i, k] * features[i, k]
        removed += residual[i]
        trace += times[i] * size
    removed *= removed
    for k in range(len(total)):
        removed += total[k] * total[k]
    return max(removed, np.float32(1e-12)) / trace


@jit
def weigh(mixing: Any, tile: Any, batch: Any, local: Any, rows: Any, samples: int, net: Any, user: Any) -> None:
    """One step of the kernel rule, where there is one: `PLGC.weigh`. The weights of the batch's rows, times its number
    of `samples`, are how many of them each row stands for."""
    mix, count, residual, times = mixing.mix, len(rows), mixing.residual[: len(rows)], mixing.times[: len(rows)]
    if len(mix.settings.odds) == 0:
        return
    mix_rows(mixing, local, rows)
    for which in range(3):
        table = local if which == 0 else mix.received if which == 1 else mixing.mixed
        predict(tile, table, rows if which < 2 else mixing.places[:count], net, user, mixing.tops[which], residual)
    for i in range(count):
        side, z = batch.sides[i], residual[i] * batch.sides[i]
        times[i] = batch.weight[i] * np.float32(samples)
        residual[i] = side * times[i] * sigmoid(z, exp(-abs(z)))
    speed = _speed(mixing.tops[0], residual, times, mixing.sum)
    follow(mix, speed, _speed(mixing.tops[1], residual, times, mixing.sum))


@jit
def settle(mixing: Any, local: Any, rows: Any, gradient: Any) -> Any:
    """From the gradient of mixed rows to that of a device's own, with the redundancy loss, which is returned."""
    mix, n, dim = mixing.mix, len(rows), gradient.shape[1]
    columns, slope, a = shaped(mix.local, dim, n), shaped(mix.slope, dim, n), mix.state[1]
    gather(local, rows, columns)
    meet(mix, rows)
    loss = redundancy(mix, columns, np.float32(1.0), n)
    for i in range(n):
        for k in range(dim):
            gradient[i, k] = a * gradient[i, k] + slope[k, i]
    return loss
