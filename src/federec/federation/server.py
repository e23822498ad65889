"""The server's part of a round: take updates in, aggregate them, step the shared parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from federec import streams
from federec.aggregators.base import Aggregator
from federec.cohort.draw import Devices
from federec.cohort.layers import Params
from federec.cohort.update import Update
from federec.federation.channel import Link
from federec.federation.device import Learned
from federec.federation.state import State
from federec.methods.base import LOSS, DeviceMethod, Notes
from federec.stages.base import KEPT, Settling
from federec.stages.randomness import Randomness, Simulated

Sum = Callable[[list[Params]], list[Params]]
"""Adds up tensors, name by name, over all processes of a run; those of a single process are the sum already."""


@dataclass(frozen=True)
class RoundReport:
    """What the server knows after a round."""

    loss: float | None
    """Mean over devices and steps; None where the method has none."""
    up_bytes: float
    down_bytes: float
    """Per device that took part."""
    means: Mapping[str, float]
    """Of the devices' own figures."""
    inspected: Callable[[], Notes] = field(compare=False)
    """What the method says of the new shared parameters; waits until that is known."""

    @property
    def notes(self) -> Notes:
        """All that is noted of the round."""
        return {**self.means, **self.inspected()}


def at_once(work: Callable[[], Notes]) -> Callable[[], Notes]:
    """Do the work; returns what gives its result."""
    done = work()
    return lambda: done


def server_random(seed: int, round_: int, devices: Devices) -> Simulated:
    """Random numbers of the simulated server of some devices in a round; none of them has its number."""
    # Filled in: a number that is copied to a GPU waits for all that the GPU has to do.
    return Simulated(torch.full((1,), streams.key(seed, round_, -1), dtype=torch.int64, device=devices.ptr.device))


def receive(method: DeviceMethod, state: State, aggregator: Aggregator, update: Update, users: Tensor) -> None:
    """Take in a cohort's updates: as they are, or what the method's server makes of them."""
    made = method.receive(users, update.ids, update.owner, update.values(), state.shared)
    if made is not None:
        summed = {name: total[None] for name, total in made.items()}
        update = Update(update.n_items, update.ids[:0], torch.zeros_like(update.counts), {}, summed)
    aggregator.add(update)


def settle(
    method: DeviceMethod,
    state: State,
    aggregator: Aggregator,
    link: Link,
    learned: Learned,
    random: Randomness,
    sum_: Sum = list,
    least: int = 1,
    begin: Callable[[Callable[[], Notes]], Callable[[], Notes]] = at_once,
) -> RoundReport:
    """New shared parameters from what the devices of all processes sent. A mean counts `least` devices at least: those
    that are missing count as devices that changed nothing. `random` is the server's own. `begin` begins to inspect the
    parameters."""
    counts = torch.tensor([learned.up_bytes, learned.down_bytes, aggregator.devices], dtype=torch.float64)
    aggregator.total, figures, counted = sum_([aggregator.total, learned.figures, {"counts": counts}])
    up, down, devices = counted["counts"].tolist()
    aggregator.devices = max(int(devices), least) if link.divisor is None else link.divisor
    kept = Params()
    if link.channel.stages:
        channel = link.channel.now(state.server)
        kept = {name: state.server.pop(name) for name in list(state.server) if name.startswith(KEPT)}
        heard = int(devices) if link.divisor is None else link.divisor
        settling = Settling(heard, random, kept, method.sends(), aggregator.n_items)
        aggregator.total = channel.server(aggregator.total, settling)
    state.shared = method.server_step(state.shared, aggregator.result(), state.server)
    state.server |= kept
    means = {name: float(total / number) for name, (total, number) in figures.items()}
    loss = means.pop(LOSS, None)
    each = max(devices, 1)  # possibly no device took part
    return RoundReport(loss, up / each, down / each, means, begin(partial(method.inspect, state.shared)))
