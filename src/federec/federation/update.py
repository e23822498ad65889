"""What leaves a device, how it travels, and how updates become one."""

from __future__ import annotations

from dataclasses import dataclass, field

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

    def send(self, update: Update, up: Tensor | None = None, down: Tensor | None = None) -> Update:
        """Carry a cohort's updates. `up` and `down` are the devices' bytes where their method knows better than this:
        each row with its item's code, and the rows and layers that change were fetched the same way."""
        row = ID_BYTES + VALUE_BYTES * sum(rows.shape[1] for rows in update.rows.values())
        size = len(update.ids) * row + VALUE_BYTES * sum(layer.numel() for layer in update.layers.values())
        self.up_bytes += size if up is None else int(up.sum())
        self.down_bytes += size if down is None else int(down.sum())
        self.devices += len(update)
        return update


@dataclass
class Mean:
    """The mean of what the devices sent, over all that took part, with equal weights; or their sum.

    Streaming: holds one running sum, never the devices' tables. A row that a device did not touch counts as zero.
    """

    n_items: int
    total: Params = field(default_factory=dict)
    devices: int = 0

    def add(self, update: Update) -> None:
        """Take in a cohort's updates."""
        for name, rows in update.rows.items():
            total = self.total.setdefault(name, rows.new_zeros(self.n_items, rows.shape[1]))
            total.scatter_add_(0, update.ids[:, None].expand_as(rows), rows)
        for name, layer in update.layers.items():
            part = layer.sum(0)
            self.total[name] = self.total[name] + part if name in self.total else part
        self.devices += len(update)

    def values(self, sums: bool = False) -> Params:
        """The means by name, or the sums."""
        return {name: total if sums else total / self.devices for name, total in self.total.items()}
