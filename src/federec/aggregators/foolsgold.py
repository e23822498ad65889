"""FoolsGold - The Limitations of Federated Learning in Sybil Settings (Fung et al., RAID 2020).

    w_i = 1 - max_k cos(x_i, x_k)        relative to the median device's, at most 1;     result = 1/N sum_i w_i x_i

Honest devices touch different rows, so their updates are hardly alike; attackers that push the same thing are. Those
that take care to differ are not found. The paper compares what devices sent in all rounds; this compares one round, so
that the server has nothing to keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from federec.aggregators.gathered import Gathered, Updates

_SMALLEST = 1e-6
"""Of a norm or a weight that something is divided by."""


@dataclass
class FoolsGold(Gathered):
    """The mean, in which devices that send the same count little."""

    name: ClassVar[str] = "foolsgold"

    def combined(self, sent: Updates) -> tuple[Tensor, Tensor]:
        if not len(sent):
            return sent.weighted(sent.squares)
        norms = sent.gram.diagonal().sqrt()
        alike = (sent.gram / (norms[:, None] * norms).clamp(min=_SMALLEST)).fill_diagonal_(0.0)
        weights = 1 - alike.max(1).values.clamp(0, 1)
        weights = (weights / weights.quantile(0.5).clamp(min=_SMALLEST)).clamp(max=1.0)
        return sent.weighted(weights.float() / sent.devices)
