"""Which kernels play the rounds of a method that has a form for them: the CPU's or the GPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

from federec.cohort.draw import Devices
from federec.federation import fused
from federec.federation.channel import Link
from federec.federation.server import RoundReport, Sum
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.methods.forms import AdditiveScore, Form, LinearScore


class Playing(Protocol):
    """A round that a kernel plays, a few users at a time."""

    def play(self, users: Tensor, ask: Tensor, judges: Tensor | None = None) -> Tensor:
        """These users learn; returns the scores of the items `ask` [C, K], each with the user's own rows, by its own
        weights or those of `judges` [C, width + 1]."""

    def finish(self, sum_: Sum = list) -> RoundReport:
        """The server takes the mean of the changes."""


def fits(form: Form | None, place: str) -> bool:
    """Whether there is a kernel for the form in that place."""
    if form is None or place == "cpu":
        return form is not None
    # Triton comes with torch for CUDA; before 2.7 its kernels took no named tuples.
    if find_spec("triton") is None or tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7):
        return False
    if isinstance(form, LinearScore):
        return form.mixing is None
    if not isinstance(form, AdditiveScore) or form.mixing is not None or form.rho > 0 or form.common_rho > 0:
        return False
    return form.common is not None and form.own is not None


def fused_round(
    method: DeviceMethod, state: State, devices: Devices, seed: int, round_: int, link: Link | None = None
) -> Playing:
    """A round in which no device has played yet."""
    if devices.ptr.device.type == "cpu":
        return fused.fused_round(method, state, devices, seed, round_, link)
    from federec.federation import fused_gpu  # needs triton

    return fused_gpu.fused_round(method, state, devices, seed, round_, link)


def fused_scores(method: DeviceMethod, state: State, devices: Devices, users: Tensor, items: Tensor) -> Tensor:
    """Scores [C, K] of items [C, K] with the server's rows."""
    if users.device.type == "cpu":
        return fused.fused_scores(method, state, devices, users, items)
    from federec.federation import fused_gpu

    return fused_gpu.fused_scores(method, state, devices, users, items)


def warm_up(method: DeviceMethod, state: State, devices: Devices) -> None:
    """Compile the kernels, or load what was compiled before."""
    if devices.ptr.device.type == "cpu":
        return fused.warm_up(method, state, devices)
    anyone, items = devices.ptr.new_zeros(1), devices.ptr.new_zeros(1, 2 * (1 + 99))
    fused_round(method, state.copy(), devices, 0, 1).play(anyone, items)
    fused_scores(method, state, devices, anyone, items)


def neighbours(
    method: DeviceMethod,
    before: State,
    after: State,
    devices: Devices,
    users: Tensor,
    seed: int,
    round_: int,
    size: int,
) -> Iterator[tuple[Tensor, Callable[[Tensor], Tensor]]]:
    """The users, `size` at a time, and what scores [C, K] items of theirs with the rows of another, as
    `views.Neighbour` has them: of the one before it in the order of stacking. `before` is the state that the round
    began with, `after` what came of it; the round is played again in `before`."""
    form = fused.form_of(method, devices)
    assert isinstance(form, LinearScore)  # methods of other forms rank with the server's rows
    stacked = users[devices.lengths(users, method.negatives).argsort(descending=True, stable=True)]
    yield stacked[:1], partial(fused_scores, method, State(before.shared, after.private), devices, stacked[:1])
    weights = after.private[form.weight].flatten(1)
    biases = weights.new_zeros(len(weights)) if form.bias is None else after.private[form.bias]
    playing = fused_round(method, before, devices, seed, round_)
    for players, judged in zip(stacked[:-1].split(size), stacked[1:].split(size), strict=True):
        judges = torch.cat([weights[judged], biases[judged].view(-1, 1)], 1)
        if form.mixing is not None:
            judges = torch.cat([judges, fused.own_share(after, form.mixing, judged)[:, None]], 1)
        yield judged, partial(playing.play, players, judges=judges)
