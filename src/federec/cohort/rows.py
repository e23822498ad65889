"""Ragged item rows: a device holds only the rows it touches, a cohort holds them in one table."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The distinct (device, item) pairs of a cohort. Row r belongs to device `owner[r]` and is item `ids[r]`;
    rows are sorted by device, then item."""

    n_items: int
    ids: Tensor
    owner: Tensor
    slots: Tensor
    """[C, S]: the row of each sample; for padding a row of the same device, so that a device which diverges affects no
    other."""
    table: Tensor | None
    """[C * n_items] row of each pair or -1; None where it would be much larger than the samples."""

    @staticmethod
    def of(items: Tensor, counts: Tensor, n_items: int, others: Tensor | None = None) -> Rows:
        """Index the samples `items` [C, S], of which device c has the first `counts[c]`, at least one. Also index the
        items in `others` [C, P], which have no slots."""
        if others is not None:
            real = torch.arange(items.shape[1], device=items.device) < counts[:, None]
            both = torch.cat([torch.where(real, items, items[:, :1]), others], 1)
            every = Rows.of(both, torch.full_like(counts, both.shape[1]), n_items)
            return replace(every, slots=every.slots[:, : items.shape[1]])
        device = torch.arange(len(items), device=items.device)[:, None]
        real = torch.arange(items.shape[1], device=items.device) < counts[:, None]
        pairs = device * n_items + torch.where(real, items, items[:, :1])
        if n_items <= 8 * items.shape[1]:
            table = torch.zeros(len(items) * n_items, dtype=torch.int32, device=items.device)
            table[pairs] = 1
            keys = table.nonzero().squeeze(1)
            table = torch.where(table > 0, table.cumsum(0, dtype=torch.int32) - 1, -1)
            return Rows(n_items, keys % n_items, keys // n_items, table[pairs].long(), table)
        keys, slots = torch.unique(pairs, return_inverse=True)
        return Rows(n_items, keys % n_items, keys // n_items, slots, None)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def keys(self) -> Tensor:
        """Sorted pair keys: owner * n_items + item."""
        return self.owner * self.n_items + self.ids

    def counts(self, devices: int) -> Tensor:
        """The number of rows of each of the first `devices` devices."""
        return torch.searchsorted(self.owner, torch.arange(devices + 1, device=self.owner.device)).diff()

    def find(self, owner: Tensor, items: Tensor) -> Tensor:
        """The row of each (device, item) pair, -1 where the device has none; owner and items broadcast.
        An owner of -1 has no rows."""
        pairs = owner * self.n_items + items
        found = look_up(self.keys, pairs) if self.table is None else self.table[pairs.clamp(min=0)].long()
        return torch.where(owner < 0, -1, found)


def look_up(keys: Tensor, wanted: Tensor) -> Tensor:
    """Position of each wanted key in the sorted `keys`, -1 where absent."""
    if not len(keys):
        return torch.full_like(wanted, -1)
    at = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
    return torch.where(keys[at] == wanted, at, -1)
