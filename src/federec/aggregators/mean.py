"""Mean over all devices that took part, each with the same weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from federec.aggregators.base import Aggregator
from federec.cohort.layers import Params


@dataclass
class Mean(Aggregator):
    """The mean over all devices that took part."""

    name: ClassVar[str] = "mean"

    def result(self) -> Params:
        return {name: total / self.devices for name, total in self.total.items()}
