"""Mean of an item's row over those devices that touched it; of layers, over all.

The plain mean divides a rare item's change by all devices, also by those that know nothing of it. This one does not,
and so steps of item rows must not grow with the number of devices: see `item_lr_factor` of the methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from federec.aggregators.base import Aggregator
from federec.cohort.layers import Params
from federec.cohort.update import Update

_TOUCHED = "@touched"  # ending of a name: how many devices touched each row of a table


@dataclass
class TouchedMean(Aggregator):
    """The mean over those who touched a row."""

    name: ClassVar[str] = "touched-mean"
    linear: ClassVar[bool] = False

    def add(self, update: Update, devices: int | None = None) -> None:
        super().add(update, devices)
        for name, rows in update.rows.items():
            counts = self.total.setdefault(name + _TOUCHED, rows.new_zeros(self.n_items))
            counts.scatter_add_(0, update.ids, rows.new_ones(len(rows)))

    def result(self) -> Params:
        found = {}
        for name, total in self.total.items():
            if name + _TOUCHED in self.total:
                found[name] = total / self.total[name + _TOUCHED].clamp(min=1)[:, None]
            elif not name.endswith(_TOUCHED):
                found[name] = total / self.devices
        return found
