"""Coordinate median - Byzantine-Robust Distributed Learning (Yin et al., ICML 2018), item by item.

The median of each value over the devices that touched the row (see `gathered` for its scale). Most devices that touch a
row draw it as a negative, so the median hardly hears those who like an unpopular item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from federec.aggregators.gathered import Gathered, Updates
from federec.aggregators.trimmed_mean import trimmed


@dataclass
class Median(Gathered):
    """The median of each value."""

    name: ClassVar[str] = "median"

    def combined(self, sent: Updates) -> tuple[Tensor, Tensor]:
        return trimmed(sent, 0.5)  # one or two values are left
