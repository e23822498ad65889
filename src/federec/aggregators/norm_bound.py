"""Norm bound: the server scales each device's update down to a largest norm, then takes the mean.

    result = 1/N sum_i x_i min(1, norm / |x_i|)          norm: given, or the median of |x_i| in the round

It needs single updates. The stage `clip` does the same on the device, and so works under secure sums; but a malicious
device leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import PositiveFloat
from torch import Tensor

from federec.aggregators.base import AggregatorSettings
from federec.aggregators.gathered import Gathered, Updates


class NormBoundSettings(AggregatorSettings):
    """What can be set."""

    aggregator: ClassVar[str] = "norm-bound"

    norm: PositiveFloat | None = None
    """Largest norm of a device's update; the median norm of the round's updates if not given."""


@dataclass
class NormBound(Gathered):
    """The mean of updates whose norms are bounded."""

    name: ClassVar[str] = "norm-bound"
    options: ClassVar[type[AggregatorSettings] | None] = NormBoundSettings

    def combined(self, sent: Updates) -> tuple[Tensor, Tensor]:
        assert isinstance(self.settings, NormBoundSettings)
        norms = sent.squares.sqrt()
        bound = self.settings.norm or (float(norms.quantile(0.5)) if len(norms) else 0.0)
        weights = torch.where(norms > bound, bound / norms, 1.0)
        return sent.weighted(weights / sent.devices)
