"""Who attacks and what is promoted: a pure function of the seed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from federec import streams
from federec.attackers.base import Attack
from federec.cohort.draw import Devices


@dataclass(frozen=True)
class Crew:
    """The attackers of a run and their targets."""

    attack: Attack
    member: Tensor
    """[N] whether a device attacks."""
    cold: Tensor
    """The less popular half of the catalogue, by the number of training interactions: what targets are drawn from."""
    targets: Tensor

    @staticmethod
    def of(attack: Attack, devices: Devices, seed: int) -> Crew:
        """Devices that learn are put in a random order, and the first ones attack: a larger fraction has the same
        attackers and more. Items likewise: more targets are the same ones and more."""
        learners = devices.ptr.diff().nonzero().flatten()
        count = round(attack.fraction * len(learners))
        count = max(1, count) if attack.fraction else 0
        member = torch.zeros(len(devices), dtype=torch.bool, device=devices.ptr.device)
        member[_shuffled(learners, devices.numbered(learners), seed, 0)[:count]] = True
        popularity = torch.bincount(devices.distinct, minlength=devices.n_items)
        cold = popularity.argsort(stable=True)[: max(1, devices.n_items // 2)]
        targets = _shuffled(cold, cold, seed, 1)[: attack.targets]
        return Crew(attack, member, cold.sort().values, targets.sort().values)

    def parted(self, users: Tensor) -> tuple[Tensor, Tensor]:
        """The honest ones of these users, and the attackers."""
        attacks = self.member[users]
        return users[~attacks], users[attacks]


def _shuffled(values: Tensor, numbers: Tensor, seed: int, purpose: int) -> Tensor:
    key = streams.bits(streams.keys(seed, streams.ONCE, numbers), streams.ATTACK + purpose)
    shuffled: Tensor = values[key.argsort(stable=True)]
    return shuffled
