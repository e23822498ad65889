"""Private item tables, which devices keep from round to round: only the rows that they touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federec.cohort.layers import Params
from federec.cohort.memory import Arena
from federec.cohort.rows import Rows, look_up

PAGE = 32
"""Rows by which a device's part of a store grows."""


class RowStore:
    """A private item table kept from round to round: for each device only the rows it ever touched.

    A row that was never touched has its value in `start`, the table that every device began with. The others are stored
    in the order in which they were touched, on pages that a device gets as it needs them: its k-th row is on page
    pages[device, k // PAGE], row k % PAGE. Rows never move, so that a kernel can write them in place.
    """

    def __init__(self, start: Tensor, devices: int) -> None:
        self.start = start
        device = start.device
        self.held = torch.zeros(devices, dtype=torch.int64, device=device)
        """Rows of each device."""
        self.pages = torch.full((devices, 0), -1, dtype=torch.int32, device=device)
        """[devices, width] pages of each device, -1 where it has no more."""
        self._have = torch.zeros(devices, dtype=torch.int64, device=device)
        """Pages of each device."""
        self.used = 0
        """The number of pages that devices have."""
        self._ids = Arena(np.zeros((0, PAGE), np.int32), device)
        self._rows = Arena(np.zeros((0, PAGE, start.shape[1]), np.float32), device)

    @property
    def device(self) -> torch.device:
        return self.start.device

    @property
    def ids(self) -> Tensor:
        """[pages, PAGE] item of each row. A view that is valid until the store grows."""
        return self._ids.tensor

    @property
    def rows(self) -> Tensor:
        """[pages, PAGE, dim]. A view that is valid until the store grows."""
        return self._rows.tensor

    def reserve(self, users: Tensor, rows: Tensor) -> None:
        """Give each of these devices pages for its number of rows."""
        have = self._have[users]
        more = ((rows + PAGE - 1).div(PAGE, rounding_mode="floor") - have).clamp(min=0)
        total, width = int(more.sum()), int((have + more).max()) if len(users) else 0
        if not total:
            return
        if width > self.pages.shape[1]:
            wider = self.pages.new_full((len(self.pages), width), -1)
            wider[:, : self.pages.shape[1]] = self.pages
            self.pages = wider
        owner, rank = _ranked(more)
        page = torch.arange(self.used, self.used + total, dtype=torch.int32, device=users.device)
        self.pages[users[owner], have[owner] + rank] = page
        self._have[users] = have + more
        self.used += total
        most = len(self.pages) * -(-len(self.start) // PAGE)
        for arena in (self._ids, self._rows):
            arena.reserve(self.used, most)

    def _lie(self, users: Tensor, k: Tensor) -> Tensor:
        """Positions of the devices' k-th rows in the flat arena."""
        return self.pages[users, k // PAGE].long() * PAGE + k % PAGE

    def _find(self, users: Tensor, pairs: Tensor) -> Tensor:
        """Positions of the rows of pairs (index in users) * n_items + item; -1 where the device has no such row."""
        owner, rank = _ranked(self.held[users])
        at, n_items = self._lie(users[owner], rank), len(self.start)
        keys = owner * n_items + self.ids.view(-1)[at]
        if len(users) * n_items <= 8 * (len(keys) + pairs.numel()):
            table = torch.full((len(users) * n_items,), -1, device=pairs.device)
            table[keys] = at
            return table[pairs]
        keys, order = keys.sort()
        found = look_up(keys, pairs)
        return torch.where(found >= 0, at[order[found]], -1) if len(keys) else found

    def take(self, users: Tensor, owner: Tensor, items: Tensor) -> Tensor:
        """The rows of (users[owner], items), owner and items broadcast."""
        at = self._find(users, owner * len(self.start) + items)
        taken = self.start[items.expand(at.shape)]
        found = at >= 0
        taken[found] = self.rows.flatten(0, 1)[at[found]]
        return taken

    def put(self, users: Tensor, index: Rows, rows: Tensor) -> None:
        """Write back the rows of a cohort; other rows stay as they are."""
        at = self._find(users, index.keys)
        new = at < 0
        fresh = torch.bincount(index.owner[new], minlength=len(users))
        held = self.held[users]
        self.reserve(users, held + fresh)
        owner, rank = _ranked(fresh)  # in the order of the new rows
        at[new] = self._lie(users[owner], held[owner] + rank)
        self.held[users] = held + fresh
        self.ids.view(-1)[at[new]] = index.ids[new].int()
        self.rows.flatten(0, 1)[at] = rows

    def part(self, users: Tensor) -> Params:
        """What these devices hold: number of rows of each (`counts`), their items, ascending (`ids`), and `rows`."""
        owner, rank = _ranked(self.held[users])
        at = self._lie(users[owner], rank)
        ids = self.ids.view(-1)[at]
        order = (owner * len(self.start) + ids).argsort()
        return {"counts": self.held[users], "ids": ids[order], "rows": self.rows.flatten(0, 1)[at[order]]}

    def fill(self, users: Tensor, part: Params) -> None:
        """Replace what these devices hold by a `part`."""
        self.held[users] = 0
        owner, _ = _ranked(part["counts"])
        self.put(users, Rows(len(self.start), part["ids"].long(), owner, owner, None), part["rows"])

    def own(self, user: int) -> tuple[Tensor, Tensor]:
        """One device's items, ascending, and their rows."""
        part = self.part(torch.tensor([user], device=self.device))
        return part["ids"], part["rows"]

    def give(self, user: int, ids: Tensor, rows: Tensor) -> None:
        """Replace the rows of one device by these, as `own` returns them."""
        counts = torch.tensor([len(ids)], device=self.device)
        self.fill(torch.tensor([user], device=self.device), {"counts": counts, "ids": ids, "rows": rows})

    def copy(self) -> RowStore:
        """An independent store with the same rows."""
        other = RowStore(self.start, 0)
        other.held, other.pages, other.used = self.held.clone(), self.pages.clone(), self.used
        other._have = self._have.clone()
        other._ids, other._rows = self._ids.copy(self.used), self._rows.copy(self.used)
        return other

    def tensors(self) -> Params:
        """Everything, for a checkpoint: views that are valid until the store grows."""
        rows = {"ids": self.ids[: self.used], "rows": self.rows[: self.used]}
        return {"start": self.start, "held": self.held, "pages": self.pages} | rows

    @staticmethod
    def of(arrays: dict[str, NDArray[Any]], device: torch.device | str = "cpu") -> RowStore:
        """The store whose `tensors` these are. On the CPU it takes the arrays over, without a copy."""
        store = RowStore(torch.from_numpy(arrays["start"]).to(device), 0)
        store.held, store.pages = (torch.from_numpy(arrays[name]).to(device) for name in ("held", "pages"))
        store._have, store.used = (store.pages >= 0).sum(1), len(arrays["ids"])
        store._ids, store._rows = Arena(arrays["ids"], store.device), Arena(arrays["rows"], store.device)
        return store


def _ranked(counts: Tensor) -> tuple[Tensor, Tensor]:
    """For counts (2, 0, 3) the owners 0 0 2 2 2 and their ranks 0 1 0 1 2."""
    owner = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    return owner, torch.arange(len(owner), device=counts.device) - (counts.cumsum(0) - counts)[owner]
