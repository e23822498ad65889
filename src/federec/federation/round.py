"""One round in one process: devices learn and send, the server takes in and settles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from federec import streams
from federec.attackers.crew import Crew
from federec.cohort.cohort import Cohort
from federec.cohort.draw import Devices
from federec.federation.attacking import attack
from federec.federation.channel import Link
from federec.federation.device import learn
from federec.federation.server import RoundReport, Sum, receive, settle
from federec.federation.state import State
from federec.methods.base import DeviceMethod


def select(devices: int, participation: float, seed: int, round_: int) -> Tensor:
    """The devices of a round: those with the smallest random keys, in order of their numbers."""
    everyone = torch.arange(devices)
    count = max(1, round(participation * devices))
    if count >= devices:
        return everyone
    key = streams.bits(streams.keys(seed, round_, everyone), streams.SELECTION)
    chosen: Tensor = key.argsort(stable=True)[:count]
    return chosen.sort().values


def play(
    method: DeviceMethod,
    state: State,
    devices: Devices,
    users: Tensor,
    seed: int,
    round_: int,
    observe: Callable[[Cohort], None] = lambda cohort: None,
    memory: float | None = None,
    sum_: Sum = list,
    link: Link | None = None,
) -> RoundReport:
    """Play one round in place. `observe` sees each cohort after it has learned, while its own rows are alive."""
    link = link or Link.of(method)
    aggregator = link.begin(devices.n_items)
    deliver = partial(receive, method, state, aggregator)
    sum_only = link.aggregator.linear and not method.opens_updates
    attackers = users[:0]
    if link.attack is not None:
        crew = Crew.of(link.attack, devices, seed)
        users, attackers = crew.parted(users)
    learned = learn(
        method, state, devices, users, seed, round_, link.channel, deliver, observe, memory, sum_only=sum_only
    )
    if len(attackers):
        sent = attack(method, state, devices, crew, attackers, seed, round_, link.channel, deliver, observe, memory)
        learned.up_bytes, learned.down_bytes = learned.up_bytes + sent.up_bytes, learned.down_bytes + sent.down_bytes
    return settle(method, state, aggregator, link.channel, learned, sum_)
