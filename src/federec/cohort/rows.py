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
    """[C, S]: the row of each sample; for padding a row of the same device, so that one which diverges spoils no
    other."""
    table: Tensor | None
    """[C * n_items] row of each pair or -1; None where that would cost more than the samples themselves."""

    @staticmethod
    def of(items: Tensor, counts: Tensor, n_items: int, others: Tensor | None = None) -> Rows:
        """Index the samples `items` [C, S], of which device c has the first `counts[c]`, at least one; and the rows of
        `others` [C, P], which no sample has a slot for."""
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
        """Rows of each device."""
        return torch.bincount(self.owner, minlength=devices)

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


class RowStore:
    """A private item table kept from round to round: for each device only the rows it ever touched.

    A row never touched has the value of `start`, the table every device began with.
    """

    def __init__(self, start: Tensor, devices: int) -> None:
        self.start = start
        empty = torch.zeros(0, dtype=torch.int32, device=start.device)
        self.ids = [empty] * devices
        self.rows = [start[:0]] * devices

    def _stack(self, users: list[int]) -> tuple[Tensor, Tensor]:
        """Sorted pair keys and rows of the listed devices."""
        ids = [self.ids[u] for u in users]
        device = torch.arange(len(users), device=self.start.device)
        lengths = torch.tensor([len(i) for i in ids], device=self.start.device)
        keys = device.repeat_interleave(lengths) * len(self.start) + torch.cat(ids)
        return keys, torch.cat([self.rows[u] for u in users])

    def take(self, users: list[int], owner: Tensor, items: Tensor) -> Tensor:
        """The rows of (users[owner], items), owner and items broadcast."""
        keys, rows = self._stack(users)
        at = look_up(keys, owner * len(self.start) + items)
        taken = self.start[items.expand(at.shape)]
        found = at >= 0
        taken[found] = rows[at[found]]
        return taken

    def put(self, users: list[int], index: Rows, rows: Tensor) -> None:
        """Write back the rows of a cohort; what it did not touch stays as it is."""
        old_keys, old = self._stack(users)
        keys = torch.cat([old_keys, index.keys]).unique()
        merged = rows.new_empty(len(keys), rows.shape[1])
        merged[look_up(keys, old_keys)] = old
        merged[look_up(keys, index.keys)] = rows
        n_items = len(self.start)
        lengths = torch.bincount(keys // n_items, minlength=len(users)).tolist()
        parts = zip(users, (keys % n_items).int().split(lengths), merged.split(lengths), strict=True)
        for user, ids, own in parts:
            self.ids[user], self.rows[user] = ids, own

    def copy(self) -> RowStore:
        """Another store with the same rows; `put` replaces rows and never writes into them."""
        other = RowStore(self.start, 0)
        other.ids, other.rows = list(self.ids), list(self.rows)
        return other

    def tensors(self) -> dict[str, Tensor]:
        """Flat form for a checkpoint."""
        lengths = torch.tensor([len(i) for i in self.ids])
        return {"start": self.start, "lengths": lengths, "ids": torch.cat(self.ids), "rows": torch.cat(self.rows)}

    @staticmethod
    def of(tensors: dict[str, Tensor]) -> RowStore:
        """The store whose `tensors` these are."""
        lengths = tensors["lengths"].tolist()
        store = RowStore(tensors["start"], 0)
        store.ids = list(tensors["ids"].split(lengths))
        store.rows = list(tensors["rows"].split(lengths))
        return store
