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
_LARGE_SYSTEM = 5000
"""Items from which a system with a row for each takes many seconds to solve."""
_LONG = 300
"""Seconds of a run from which it is said how long it will take."""


def announcements(config: RunConfig, data: Interactions) -> Iterator[str]:
    """Sentences to say before a run starts."""
    from federec.data.describe import remarks
    from federec.methods.ease import EASE
    from federec.methods.fedease import FedEASE

    yield from remarks(data)
    if config.evaluate_users is None and data.n_users * data.n_items > _LONG_RANKING:
        ranking = f"ranking {data.n_items:,} items for {data.n_users:,} users takes long"
        yield f"{data.name}: {ranking}; --evaluate-users 10000 does it for some"
    method = config.build()
    up, down = device_bytes(config, method, data)
    if max(up, down) > _MANY_BYTES:
        yield f"traffic: in round 1 a device sends about {up / 1e6:.1f} MB and receives about {down / 1e6:.1f} MB"
    if isinstance(method, EASE | FedEASE) and data.n_items > _LARGE_SYSTEM:
        yield f"time: '{method.name}' solves for {data.n_items:,} items in closed form, which takes long"
    server, devices = parameter_bytes(method, data)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if server + devices > _MUCH_MEMORY * machine:
        parts = f"the server's {server / 1e9:.1f} GB, the devices' together {devices / 1e9:.1f} GB"
        yield f"memory: the parameters take much of this machine's {machine / 1e9:.0f} GB: {parts}"


def costs(first: Line, rounds: int) -> Iterator[str]:
    """Sentences to say after the first round, from what it took."""
    seconds = (first["seconds"]["train"] + first["seconds"]["evaluate"]) * rounds
    if seconds > _LONG:
        yield f"time: about {seconds / 60:.0f} minutes for all {rounds} rounds, by the first one"


def device_bytes(config: RunConfig, method: Method, data: Interactions) -> tuple[int, int]:
    """Bytes that a device with a history of average length sends and receives in the first round; (0, 0) where there
    are no devices."""
    import torch

    from federec.cohort.cohort import Cohort
    from federec.cohort.draw import Devices, draw
    from federec.cohort.rows import Rows
    from federec.methods.base import DeviceMethod
    from federec.stages.base import Format

    if not isinstance(method, DeviceMethod):
        return 0, 0
    n_items, length = data.n_items, max(1, min(data.n_items, len(data) // data.n_users))
    ptr, items = torch.tensor([0, length]), torch.arange(length, dtype=torch.int32)
    devices = Devices(n_items, ptr, items, ptr, torch.zeros_like(items), ptr, items)
    user = torch.tensor([0])
    samples = draw(devices, user, 0, 1, method.negatives)
    rows = Rows.of(samples.items, samples.counts, n_items, method.cover(user, samples, n_items))
    cohort = Cohort(user, samples, rows, {}, {}, 1, devices.history(user))
    sends = {name: (param.rows, param.sized(n_items, data.n_users)) for name, param in method.sends().items()}
    width = sum(shape[0] for by_item, shape in sends.values() if by_item)
    whole = 4 * sum(prod(shape) for by_item, shape in sends.values() if not by_item)
    zero = torch.zeros(())  # expanded, so that a large message takes no memory
    message = {name: zero.expand(len(rows) if by_item else 1, *shape) for name, (by_item, shape) in sends.items()}
    format_ = config.link(method).channel.format
    counts = torch.tensor([n_items if format_.rows == "all" else len(rows)])
    up, down = method.upload_bytes(cohort, message), method.download_bytes(cohort)
    up = format_.table(counts, width, n_items) + whole if up is None else up * format_.value_bits // 32
    down = Format().table(counts, width, n_items) + whole if down is None else down
    return int(up), int(down)


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
