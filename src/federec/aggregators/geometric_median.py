"""Geometric median - Robust Aggregation for Federated Learning (Pillutla et al., IEEE TSP 2022).

    z = argmin_z sum_i |x_i - z|            by Weiszfeld's steps:   z <- sum_i w_i x_i,   w_i ~ 1 / max(nu, |x_i - z|)

The updates are whole: all rows and layers of a device, zeros where it touched nothing. z is always a weighted mean of
the updates, so a step only needs their inner products, which are computed once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor

from federec.aggregators.base import AggregatorSettings
from federec.aggregators.gathered import Gathered, Updates

_SMALLEST = 1e-6
"""nu, as a fraction of the usual distance."""


class GeometricMedianSettings(AggregatorSettings):
    """What can be set."""

    aggregator: ClassVar[str] = "geometric-median"

    steps: PositiveInt = 8
    """Weiszfeld's steps."""


@dataclass
class GeometricMedian(Gathered):
    """The point whose distances to all updates have the smallest sum."""

    name: ClassVar[str] = "geometric-median"
    options: ClassVar[type[AggregatorSettings] | None] = GeometricMedianSettings

    def combined(self, sent: Updates) -> tuple[Tensor, Tensor]:
        assert isinstance(self.settings, GeometricMedianSettings)
        weights = torch.full((len(sent),), 1 / max(1, len(sent)), dtype=torch.float64, device=sent.ids.device)
        for _ in range(self.settings.steps if len(sent) else 0):
            toward = sent.gram @ weights
            distance = (sent.gram.diagonal() - 2 * toward + weights @ toward).clamp(min=0).sqrt()
            weights = 1 / distance.clamp(min=_SMALLEST * float(distance.mean()) + 1e-30)
            weights = weights / weights.sum()
        return sent.weighted(weights.float() * (len(sent) / sent.devices))
