"""What leaves a device, how it travels, and how updates become one."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from federec.cohort.layers import Params

ID_BYTES = 4
VALUE_BYTES = 4


@dataclass(frozen=True)
class Update:
    """The updates of a cohort's devices, stacked. These fields, and nothing else, leave a device."""

    ids: Tensor
    """Item codes of the changed rows, device after device."""
    counts: Tensor
    """Changed rows of each device."""
    rows: Params
    """Item table -> change of each row, [len(ids), dim]."""
    layers: Params
    """Shared layer -> change on each device, [C, ...]."""

    def __len__(self) -> int:
        return len(self.counts)


@dataclass
class Channel:
    """The way of an update to the server, and of the shared parameters to the devices. Counts the bytes."""

    up_bytes: int = 0
    down_bytes: int = 0
    devices: int = 0

    def send(self, update: Update) -> Update:
        """Carry a cohort's updates; the rows and layers they change were fetched the same way."""
        row = ID_BYTES + VALUE_BYTES * sum(rows.shape[1] for rows in update.rows.values())
        size = len(update.ids) * row + VALUE_BYTES * sum(layer.numel() for layer in update.layers.values())
        self.up_bytes += size
        self.down_bytes += size
        self.devices += len(update)
        return update


@dataclass
class Mean:
    """The server's step: shared += mean of the changes over the devices that took part, with equal weights.

    Streaming: holds one running sum, never the devices' tables. A row that a device did not touch counts as
    unchanged.
    """

    total: Params = field(default_factory=dict)
    devices: int = 0

    def add(self, update: Update, shared: Params) -> None:
        """Take in a cohort's updates."""
        for name, rows in update.rows.items():
            self._sum(name, shared).scatter_add_(0, update.ids[:, None].expand_as(rows), rows)
        for name, layer in update.layers.items():
            self._sum(name, shared).add_(layer.sum(0))
        self.devices += len(update)

    def _sum(self, name: str, shared: Params) -> Tensor:
        return self.total.setdefault(name, torch.zeros_like(shared[name]))

    def apply(self, shared: Params) -> Params:
        """The new shared parameters."""
        moved = {name: shared[name] + total / self.devices for name, total in self.total.items()}
        return {**shared, **moved}
