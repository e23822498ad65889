"""Dense rows: a device fetches and sends whole item tables, zeros where it changed nothing.

Which rows it asked for is then no secret any more that could be read off. Which ones it changed is, unless noise or a
secure sum after this stage hides the zeros.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from federec.cohort.update import Update
from federec.lazy import torch
from federec.stages.base import Format, Stage
from federec.stages.randomness import Randomness

if TYPE_CHECKING:
    from torch import Tensor


class Dense(Stage):
    """Fetch and send the rows of all items.

    >>> hidden = fr.train("fedmf", data, rounds=1, channel=[fr.Dense()])
    """

    name: ClassVar[str] = "dense"
    on_sums: ClassVar[bool] = True
    adds_rows: ClassVar[bool] = True
    fetches_all: ClassVar[bool] = True

    def device(self, update: Update, random: Randomness) -> Update:
        if not update.rows:
            return update
        every = torch.arange(len(update) * update.n_items, device=update.ids.device)
        return widened(update, every // update.n_items, every % update.n_items)

    def format(self, known: Format) -> Format:
        return replace(known, rows="all")


def widened(update: Update, owner: Tensor, ids: Tensor) -> Update:
    """The same changes in more rows, zeros in the new ones; rows are sorted by owner, then item."""
    place = torch.searchsorted(owner * update.n_items + ids, update.owner * update.n_items + update.ids)

    def spread(rows: Tensor) -> Tensor:
        return rows.new_zeros(len(ids), rows.shape[1]).index_copy_(0, place, rows)

    rows = {name: spread(value) for name, value in update.rows.items()}
    return replace(update, ids=ids, counts=torch.bincount(owner, minlength=len(update)), rows=rows)
