"""What a run says of itself: how its data was read and, where that is much, what it costs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from federec.data.interactions import Interactions
    from federec.methods.base import Method
    from federec.runs.config import RunConfig
    from federec.runs.folder import Line

_LONG_RANKING = 1e10
"""Users times items from which ranking all items for everybody takes many minutes."""
_MUCH_MEMORY = 0.25
"""Fraction of the machine's memory from which it is said how much a run's parameters take."""

_MANY_BYTES = 10e6
"""Bytes that a device sends or receives in a round from which they are said."""
_LONG = 300
"""Seconds of a run from which it is said how long it will take."""


def announcements(config: RunConfig, data: Interactions) -> Iterator[str]:
    """Sentences to say before a run starts."""
    from federec.data.describe import remarks

    yield from remarks(data)
    if config.evaluate_users is None and data.n_users * data.n_items > _LONG_RANKING:
        ranking = f"ranking {data.n_items:,} items for {data.n_users:,} users takes long"
        yield f"{data.name}: {ranking}; --evaluate-users 10000 does it for some"
    server, devices = parameter_bytes(config.build(), data)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if server + devices > _MUCH_MEMORY * machine:
        parts = f"the server's {server / 1e9:.1f} GB, the devices' together {devices / 1e9:.1f} GB"
        yield f"memory: the parameters take much of this machine's {machine / 1e9:.0f} GB: {parts}"


def costs(first: Line, rounds: int) -> Iterator[str]:
    """Sentences to say after the first round, from what it took."""
    up, down = first["up_bytes"] or 0.0, first["down_bytes"] or 0.0
    if max(up, down) > _MANY_BYTES:
        yield f"traffic: in round 1 a device sends {up / 1e6:.1f} MB and receives {down / 1e6:.1f} MB"
    seconds = (first["seconds"]["train"] + first["seconds"]["evaluate"]) * rounds
    if seconds > _LONG:
        yield f"time: about {seconds / 60:.0f} minutes for all {rounds} rounds, by the first one"


def parameter_bytes(method: Method, data: Interactions) -> tuple[int, int]:
    """Bytes of the server's parameters, and of all devices' private ones; (0, 0) where there are no devices."""
    from federec.cohort.layers import kept_bytes
    from federec.methods.base import DeviceMethod

    if not isinstance(method, DeviceMethod):
        return 0, 0
    server = 0
    for param in method.shared().values():
        server += 4 * prod(param.sized(data.n_items, data.n_users)) * (data.n_items if param.rows else 1)
    whole, item = kept_bytes(method.private())
    return server, whole * data.n_users + item * len(data)
