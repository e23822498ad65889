"""FoolsGold - The Limitations of Federated Learning in Sybil Settings (Fung et al., RAID 2020).

    a_i = 1 - max_k cos(x_i, x_k)        divided by the largest of them
    w_i = ln(a_i / (1 - a_i)) + 1/2      between 0 and 1;          result = 1/N sum_i w_i x_i

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
"""Of what something is divided by."""


@dataclass
class FoolsGold(Gathered):
    """The mean, in which devices that send the same count little."""

    name: ClassVar[str] = "foolsgold"

    def combined(self, sent: Updates) -> tuple[Tensor, Tensor]:
        if not len(sent):
            return sent.weighted(sent.squares)
        norms = sent.gram.diagonal().sqrt()
        alike = (sent.gram / (norms[:, None] * norms).clamp(min=_SMALLEST)).fill_diagonal_(0.0)
        apart = 1 - alike.max(1).values.clamp(0, 1)
        apart = apart / apart.max().clamp(min=_SMALLEST)
        weights = (apart.logit() + 0.5).clamp(0, 1)
        return sent.weighted(weights.float() / sent.devices)
