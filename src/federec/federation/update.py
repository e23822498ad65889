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

    @property
    def owner(self) -> Tensor:
        """The device, as its place among those of the cohort, that each changed row is from."""
        device = torch.arange(len(self), device=self.counts.device)
        return torch.repeat_interleave(device, self.counts, output_size=len(self.ids))


@dataclass
class Channel:
    """The way of an update to the server, and of the shared parameters to the devices. Counts the bytes.

    A device sends its item rows in the cheapest of three ways: `dense`, the whole table in the order of items; `rows`,
    each row that is not all zeros, with its item's code; `values`, each such row as code, one bit a value and the
    values that are not zero. A layer goes whole, or as bits and non-zero values. Zero means exactly zero: nothing is
    rounded.
    """

    n_items: int
    up_bytes: int = 0
    down_bytes: int = 0

    def send(self, update: Update, up: Tensor | None = None, down: Tensor | None = None) -> Update:
        """Carry a cohort's updates. `up` and `down` are the devices' bytes where their method knows better than this:
        updates as above; the rows and layers that they change were fetched before, dense or with their codes."""
        up = self.sent(update) if up is None else up
        down = self.fetched(update) if down is None else down
        sent, fetched = torch.stack([up.sum(), down.sum()]).tolist()
        self.up_bytes += int(sent)
        self.down_bytes += int(fetched)
        return update

    def sent(self, update: Update) -> Tensor:
        """Bytes of each device's message, [C]."""
        width = sum(rows.shape[1] for rows in update.rows.values())
        owner = update.owner
        filled = sum((_filled(rows) for rows in update.rows.values()), torch.zeros_like(update.ids))
        kept, values = (torch.zeros_like(update.counts).scatter_add_(0, owner, x) for x in (filled.sign(), filled))
        size = self.changes_bytes(kept, values, width)
        for layer in update.layers.values():
            size = size + self.layer_bytes(_filled(layer), layer[0].numel())
        return size

    def fetched(self, update: Update) -> Tensor:
        """Bytes of the rows and layers that each device changes, [C]."""
        width = sum(rows.shape[1] for rows in update.rows.values())
        whole = sum(layer[0].numel() for layer in update.layers.values()) * VALUE_BYTES
        return self.rows_bytes(update.counts, width) + whole

    def changes_bytes(self, rows: Tensor, values: Tensor, width: int) -> Tensor:
        """Bytes of so many rows that are not all zeros, with so many values that are not, in the cheapest way."""
        by_value = rows * (ID_BYTES + _bits(width)) + values * VALUE_BYTES
        return torch.minimum(self.rows_bytes(rows, width), by_value)

    def layer_bytes(self, values: Tensor, width: int) -> Tensor:
        """Bytes of a layer of `width` values, so many of which are not zero, in the cheaper way."""
        return (values * VALUE_BYTES + _bits(width)).clamp(max=width * VALUE_BYTES)

    def rows_bytes(self, counts: Tensor, width: int) -> Tensor:
        """Bytes of so many rows, with their items' codes or as a whole table."""
        return (counts * (ID_BYTES + VALUE_BYTES * width)).clamp(max=self.n_items * width * VALUE_BYTES)


def _filled(values: Tensor) -> Tensor:
    """How many values of each row are not zero."""
    rows = values.flatten(1)
    # The common case, told several times as quickly by a CPU; a GPU would be waited for.
    if rows.device.type == "cpu" and int(rows.count_nonzero()) == rows.numel():
        return torch.full((len(rows),), rows.shape[1], device=rows.device)
    return rows.count_nonzero(1)


def _bits(values: int) -> int:
    """Bytes of one bit a value."""
    return -(-values // 8)


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
            if name not in self.total:
                self.total[name] = rows.new_zeros(self.n_items, rows.shape[1])
            self.total[name].scatter_add_(0, update.ids[:, None].expand_as(rows), rows)
        for name, layer in update.layers.items():
            part = layer.sum(0)
            self.total[name] = self.total[name] + part if name in self.total else part
        self.devices += len(update)

    def values(self, sums: bool = False) -> Params:
        """The means by name, or the sums."""
        return {name: total if sums else total / self.devices for name, total in self.total.items()}
