"""Decoys: a device fetches and sends rows of other items besides those that it needs.

Always the same ones: what a user has comes back in every round, and decoys that changed beside it would give it away.
Their changes are zero. Only noise after this stage hides which rows are decoys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor

from federec import streams
from federec.cohort.update import Update
from federec.stages.base import Format, Secrets, Stage
from federec.stages.dense import widened


class Decoys(Stage):
    """Fetch and send rows of random other items, too."""

    name: ClassVar[str] = "decoys"
    adds_rows: ClassVar[bool] = True

    count: PositiveInt = 500
    """Random items drawn, with replacement: a few may be drawn twice, or be the device's own."""

    def drawn(self, secrets: Secrets, n_items: int) -> Tensor:
        """[C, count] items."""
        draw = streams.DECOYS + torch.arange(self.count, device=secrets.lasting.device)
        items: Tensor = streams.below(streams.bits(secrets.lasting[:, None], draw), draw.new_tensor(n_items))
        return items

    def device(self, update: Update, secrets: Secrets) -> Update:
        if not update.rows:
            return update
        items = self.drawn(secrets, update.n_items)
        device = torch.arange(len(update), device=items.device)[:, None]
        held = update.owner * update.n_items + update.ids
        pairs = torch.cat([held, (device * update.n_items + items).flatten()]).unique()
        return widened(update, pairs // update.n_items, pairs % update.n_items)

    def asks(self, needed: Tensor, n_items: int, secrets: Secrets) -> Tensor:
        both: Tensor = torch.cat([needed, self.drawn(secrets, n_items)[0]]).unique()
        return both

    def format(self, known: Format) -> Format:
        return replace(known, rows="named")
