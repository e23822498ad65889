"""Sum over the devices that took part: for servers that solve for their parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from federec.aggregators.base import Aggregator
from federec.cohort.layers import Params


@dataclass
class Sum(Aggregator):
    """The sum over all devices that took part."""

    name: ClassVar[str] = "sum"

    def result(self) -> Params:
        return self.total
