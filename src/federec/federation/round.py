"""One round in one process: devices learn and send, the server takes in and settles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from federec import streams
from federec.cohort.cohort import Cohort
from federec.cohort.draw import Devices
from federec.federation.channel import Link
from federec.federation.device import learn
from federec.federation.server import RoundReport, Sum, receive, server_random, settle
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.stages.base import shapes


def select(devices: int, participation: float, seed: int, round_: int, poisson: bool = False) -> Tensor:
    """The devices of a round: those with the smallest random keys, in order of their numbers. `poisson`: each takes
    part with the probability `participation`, whatever the others do; then it can be that none does."""
    everyone = torch.arange(devices)
    count = max(1, round(participation * devices))
    if (participation if poisson else count / devices) >= 1:
        return everyone
    key = streams.bits(streams.keys(seed, round_, everyone), streams.SELECTION)
    chosen: Tensor
    if poisson:
        chosen = (streams.unit(key) < participation).nonzero().flatten()
        return chosen
    chosen = key.argsort(stable=True)[:count]
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
    aggregator = link.aggregator(devices.n_items)
    deliver = partial(receive, method, state, aggregator)
    channel = link.channel.now(state.server) if link.channel.stages else link.channel
    sum_only = link.aggregator.linear and not method.opens_updates
    learned = learn(method, state, devices, users, seed, round_, channel, deliver, observe, memory, sum_only=sum_only)
    if link.divisor is not None and not aggregator.total and method.speaks(round_):
        # By chance nobody took part: noise on nothing must not show it.
        like = next(iter(state.shared.values()))
        sizes = shapes(channel.sends(method.sends(), devices.n_items), devices.n_items)
        aggregator.total = {name: like.new_zeros(size) for name, size in sizes.items()}
    random = server_random(seed, round_, devices)
    return settle(method, state, aggregator, link, learned, random, sum_)
