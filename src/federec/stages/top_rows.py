"""Top rows: a device sends only the rows that it changed most.

Cheap, and biased: small changes of rare items are never sent. Rows are compared by their norm over all item tables.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import PositiveInt

from federec.cohort.update import Update
from federec.lazy import torch
from federec.stages.base import Stage
from federec.stages.randomness import Randomness


class TopRows(Stage):
    """Send only the rows that changed most.

    >>> few = fr.train("fedmf", data, rounds=1, channel=[fr.TopRows(count=10)])
    """

    name: ClassVar[str] = "top-rows"

    count: PositiveInt = 100
    """Rows that a device sends."""

    def device(self, update: Update, random: Randomness) -> Update:
        if not update.rows:
            return update
        size = torch.stack([rows.square().sum(1) for rows in update.rows.values()]).sum(0)
        order = size.argsort(descending=True, stable=True)
        owner = update.owner
        order = order[owner[order].argsort(stable=True)]  # by device, largest first
        rank = torch.arange(len(order), device=order.device) - (update.counts.cumsum(0) - update.counts)[owner]
        kept = torch.zeros_like(owner, dtype=torch.bool).index_put_((order,), rank < self.count)
        rows = {name: value[kept] for name, value in update.rows.items()}
        return replace(update, ids=update.ids[kept], counts=update.counts.clamp(max=self.count), rows=rows)
