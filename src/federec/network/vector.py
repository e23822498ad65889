"""A node's reply as a vector of integers, which is what a secure sum adds up; and the reply that a sum stands for.

The vector: how many users it speaks for; 1 for each parameter that the node has something to say of and 0 for each
other; sums and counts of losses and metrics; then the parameters, item tables whole. A value beyond +-most for each
user is cut off, the rest is rounded to one of `STEPS` steps in that range. Sums of whole numbers are exact. What
`distributed-noise` made whole numbers of already goes as it is, modulo 2^32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from federec.cohort.layers import Param
from federec.evaluation.metrics import NAMES
from federec.methods.base import LOSS
from federec.network.messages import Order, Reply
from federec.network.parameters import Array, Arrays, Payload
from federec.stages.distributed_noise import NOISED, wrapped
from federec.stages.secure_sum import STEPS

_LONG = 64.0  # a device's sum of losses is over all its steps, and so this much longer than other values


def length(sends: Mapping[str, Param], n_items: int) -> int:
    """How many numbers a vector has."""
    return 1 + len(sends) + 2 * len(_names()) + sum(math.prod(_shape(param, n_items)) for param in sends.values())


def flat(reply: Reply, sends: Mapping[str, Param], n_items: int, most: float) -> NDArray[np.int64]:
    """A node's vector."""
    values = {**reply.update.rows, **reply.update.layers}
    pairs = [reply.sums.get(name, (0.0, 0)) for name in _names()]
    parts = [np.array(pairs, np.float64).ravel() / _scales(n_items)]
    for name, param in sends.items():
        if name != NOISED:
            value = values.get(name)
            parts.append(np.zeros(math.prod(_shape(param, n_items))) if value is None else value.ravel())
    range_ = most * max(1, reply.devices)
    with np.errstate(invalid="ignore"):  # what diverged is no number, and spoils the sum
        rounded = np.rint(np.concatenate(parts).clip(-range_, range_) / _step(most)).astype(np.int64)
    whole = [reply.devices, *(int(name in values) for name in sends)]
    found = [np.array(whole, np.int64), rounded]
    if NOISED in sends:
        found.append(wrapped(values.get(NOISED, np.zeros(sends[NOISED].shape, np.int64))))
    return np.concatenate(found)


def unflat(total: NDArray[np.int64], order: Order, sends: Mapping[str, Param], n_items: int, most: float) -> Reply:
    """The reply that the sum of all vectors stands for."""
    users, said = int(total[0]), (total[1 : 1 + len(sends)] > 0).tolist()
    numbers = total[1 + len(sends) :]
    rest = numbers * _step(most)
    figures = 2 * len(_names())
    pairs, rest = (rest[:figures] * _scales(n_items)).reshape(-1, 2).tolist(), rest[figures:]
    sums = {name: (sum_, round(count)) for name, (sum_, count) in zip(_names(), pairs, strict=True) if round(count) > 0}
    rows: Arrays = {}
    layers: Arrays = {}
    for (name, param), told in zip(sends.items(), said, strict=True):
        shape = _shape(param, n_items)
        value: Array
        value, rest = rest[: math.prod(shape)].reshape(shape).astype(np.float32), rest[math.prod(shape) :]
        if name == NOISED:  # the only one where it is there
            value = wrapped(numbers[figures:])
        if told:
            (rows if param.rows else layers)[name] = value
    update = Payload(np.arange(n_items if rows else 0), rows, layers)
    return Reply(order.run, order.round, "", users, sums, update=update)


def spoiled(total: NDArray[np.int64], nodes: int, users: int, noised: int = 0) -> bool:
    """Whether a sum over nodes with so many users at most cannot be one of honest vectors. Its last `noised` numbers
    may be anything."""
    numbers, said = total[:1], total[1 : len(total) - noised]
    return not 0 < int(numbers[0]) <= users or bool((np.abs(said) > max(nodes, users * (STEPS // 2))).any())


def _shape(param: Param, n_items: int) -> tuple[int, ...]:
    return (n_items,) * param.rows + param.sized(n_items)


def _step(most: float) -> float:
    return 2 * most / STEPS


def _scales(n_items: int) -> NDArray[np.float64]:
    scales = {LOSS: _LONG, "interactions": float(n_items)}
    return np.array([scales.get(name, 1.0) for name in _names() for _ in range(2)])


def _names() -> list[str]:
    kinds = [f"{part} {kind}" for part in ("valid", "test") for kind in ("sampled", "full")]
    return [LOSS, "interactions", *(f"{kind} {name}" for kind in kinds for name in NAMES)]
