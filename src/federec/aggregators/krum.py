"""Krum and Multi-Krum - Machine Learning with Adversaries (Blanchard et al., NeurIPS 2017).

    s_i = sum of |x_i - x_k|^2 over the N - f - 2 updates k nearest to i           f: attackers that are assumed

Krum takes the update with the smallest score, Multi-Krum the mean of the N - f updates with the smallest scores. A
device's update has only the rows that it touched, so Krum's result is far from a mean over devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from federec.aggregators.base import AggregatorSettings
from federec.aggregators.gathered import Gathered, Updates


class KrumSettings(AggregatorSettings):
    """What can be set."""

    aggregator: ClassVar[str] = "krum"

    fraction: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    """Fraction of the devices that are assumed to be attackers."""


class MultiKrumSettings(KrumSettings):
    """What can be set."""

    aggregator: ClassVar[str] = "multi-krum"


@dataclass
class Krum(Gathered):
    """The update that is nearest to the others."""

    name: ClassVar[str] = "krum"
    options: ClassVar[type[AggregatorSettings] | None] = KrumSettings

    def chosen(self, devices: int, attackers: int) -> int:
        """How many updates are taken."""
        return 1

    def combined(self, sent: Updates) -> tuple[Tensor, Tensor]:
        assert isinstance(self.settings, KrumSettings)
        devices = len(sent)
        attackers = math.ceil(self.settings.fraction * devices)
        nearest = max(1, devices - attackers - 2)
        distances = sent.distances().fill_diagonal_(torch.inf).sort(1).values[:, :nearest]
        scores = distances.nan_to_num(posinf=0.0).sum(1)
        best = scores.argsort(stable=True)[: self.chosen(devices, attackers)]
        weights = torch.zeros(devices, device=best.device).index_fill_(0, best, 1.0)
        return sent.weighted(weights * (devices / (max(1, len(best)) * sent.devices)))


@dataclass
class MultiKrum(Krum):
    """The mean of the updates that are nearest to the others."""

    name: ClassVar[str] = "multi-krum"
    options: ClassVar[type[AggregatorSettings] | None] = MultiKrumSettings

    def chosen(self, devices: int, attackers: int) -> int:
        return max(1, devices - attackers)
