"""The attackers' part of a round: they learn, and send what their attack makes of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from federec.attackers.base import Scene, Score
from federec.attackers.crew import Crew
from federec.cohort.draw import Devices
from federec.cohort.layers import Params
from federec.cohort.memory import spread
from federec.cohort.store import RowStore
from federec.cohort.update import Update
from federec.federation.channel import Channel
from federec.federation.device import Deliver, Learned, Observe, learn
from federec.federation.scoring import score_global
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.stages.randomness import Simulated


def attack(
    method: DeviceMethod,
    state: State,
    devices: Devices,
    crew: Crew,
    users: Tensor,
    seed: int,
    round_: int,
    channel: Channel,
    deliver: Deliver,
    observe: Observe,
    memory: float | None,
) -> Learned:
    """The attackers among the round's users learn and send. Their private parameters change in place."""
    scene = Scene(
        method=method,
        shared=state.shared,
        users=users,
        targets=crew.targets,
        devices=devices,
        score=_scores(method, state, users, devices),
        imagine=partial(_imagined, method, state, users, seed, round_),
        seed=seed,
        round=round_,
    )
    plan = crew.attack.plan(scene)
    forged = crew.attack.forge(scene) or devices

    def send(update: Update, senders: Tensor) -> None:
        sent = crew.attack.send(scene, plan, update, senders)
        if crew.attack.obeys:
            sent, _ = channel.device(sent, Simulated.of(seed, round_, devices.numbered(senders)))
        deliver(sent, senders)

    return learn(method, state, forged, users, seed, round_, Channel(), send, observe, memory)


def _scores(method: DeviceMethod, state: State, users: Tensor, devices: Devices) -> Score:
    """How users score with given shared parameters."""

    def score(shared: Params, items: Tensor) -> Tensor:
        return score_global(method, replace(state, shared=shared), users, items.expand(len(users), -1), devices)

    return score


def _imagined(
    method: DeviceMethod, state: State, attackers: Tensor, seed: int, round_: int, public: Devices, users: Tensor
) -> Score:
    """How users would score that began with the mean of the attackers' private parameters and played this round with
    these interactions."""
    private = {name: value[attackers].double().mean(0).to(value) for name, value in state.private.items()}
    other = State(
        state.shared,
        {name: spread(value, len(public)) for name, value in private.items()},
        {name: RowStore(store.start, len(public)) for name, store in state.stores.items()},
    )
    learn(method, other, public, users, seed, round_, Channel(), _keep)
    return _scores(method, other, users, public)


def _keep(update: Update, users: Tensor) -> None:
    """Nothing is sent."""
