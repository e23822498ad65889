"""What an aggregator is: how the updates of many devices become one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from federec.cohort.layers import Params
from federec.cohort.update import Update
from federec.settings import Part


class AggregatorSettings(Part):
    """The settings of an aggregator."""

    aggregator: ClassVar[str]
    """Name of the aggregator."""

    @classmethod
    def called(cls) -> str:
        return f"aggregator '{cls.aggregator}'"


@dataclass
class Aggregator:
    """Takes in updates as they come and holds one running sum, never the devices' tables. A row that a device did not
    touch counts as zero. Subclasses say what the server gets of it."""

    name: ClassVar[str]
    linear: ClassVar[bool] = True
    """Its result only depends on the sum of the updates and their number: kernels, which sum on the way, and secure
    sums will do."""
    gathers: ClassVar[bool] = False
    """It keeps the updates of a round until all are there, so all must come to one process."""
    options: ClassVar[type[AggregatorSettings] | None] = None
    """What can be set; None: nothing."""

    n_items: int
    total: Params = field(default_factory=dict)
    """What `merge` adds up, by name."""
    devices: int = 0
    settings: AggregatorSettings | None = None
    """Of the class `options`; the default ones if not given."""

    def __post_init__(self) -> None:
        if self.settings is None and self.options is not None:
            self.settings = self.options()

    def add(self, update: Update, devices: int | None = None) -> None:
        """Take in a cohort's updates; or one that is a sum over this many devices."""
        for name, rows in update.rows.items():
            if name not in self.total:
                self.total[name] = rows.new_zeros(self.n_items, rows.shape[1])
            self.total[name].scatter_add_(0, update.ids[:, None].expand_as(rows), rows)
        for name, layer in update.layers.items():
            part = layer.sum(0)
            self.total[name] = self.total[name] + part if name in self.total else part
        self.devices += len(update) if devices is None else devices

    def merge(self, total: Params, devices: int) -> None:
        """Take in what another one holds: of another process, or a sum that was made on the way."""
        for name, value in total.items():
            self.total[name] = self.total[name] + value if name in self.total else value
        self.devices += devices

    def result(self) -> Params:
        """What the server steps with, by name."""
        raise NotImplementedError(f"{type(self).__name__}.result")
