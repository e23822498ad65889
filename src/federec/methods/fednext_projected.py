"""FedNext, projected - the same regression on histories of short rows, for fewer bytes.

    s_t = sum_{k < t} 2^(-(t-k-1)/h) r_k      r_k: a row of `dim` numbers for item k, instead of its code e(k)
    R <- orthonormal(G R)                     each sweep, from the sum G of devices' co-occurrences, which is never sent

What a device sends then grows with the catalogue, not with its square: (half-lives x dim)^2 / 2 numbers for s s' and
half-lives x dim x items for s y', y as in FedNext. Rows begin at random, from the seed. A sweep is one step of power
iteration: for each of its items a device sends the sum of the rows of all its items.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from federec.cohort.cohort import Cohort
from federec.cohort.draw import History
from federec.cohort.layers import ITEMS, Param, Params
from federec.methods.next_item import TARGET, NextItem, Turn

SKETCH, SUMS, NEXT = "sketch", "sums", "next"


class FedNextProjected(NextItem):
    """FedNext on rows of a few numbers instead of item codes: fewer bytes, and a coarser model.

    >>> fr.FedNextProjected(dim=16, sweeps=2).most_rounds  # two that learn rows, one trial
    3
    """

    name: ClassVar[str] = "fednext-projected"
    paper: ClassVar[str] = "ours; FedNext with fewer bytes"

    dim: PositiveInt = 64
    """Width of an item row."""
    sweeps: NonNegativeInt = 2
    """Rounds in which rows are learned, before the first trial; 0 = random rows."""

    def asked_for(self, first: bool) -> list[tuple[str, ...]]:
        return [(SKETCH,)] * (self.sweeps if first else 0) + [(SUMS, NEXT)]

    def shared(self) -> dict[str, Param]:
        return {
            "weights": Param((self.kinds, self.dim, ITEMS), "zeros"),
            "half_lives": Param((self.kinds,), "zeros"),
            "rows": Param((ITEMS, self.dim), scale=self.dim**-0.5),
        }

    def sends(self) -> dict[str, Param]:
        wide = self.kinds * self.dim
        sketch = {SKETCH: Param((self.dim,), rows=True)} if self.sweeps else {}
        return {**sketch, SUMS: Param((wide, wide)), NEXT: Param((wide, ITEMS))}

    def message(self, cohort: Cohort, shared: Params) -> Params:
        turn, history = self.turn(cohort.round), cohort.history
        assert history is not None
        if not turn.sends:
            return {}
        rows = shared["rows"][history.items] * history.real[:, :, None]
        if SKETCH in turn.sends:
            return {SKETCH: rows.sum(1)[cohort.rows.owner]}
        return self.projected(turn, history, rows, cohort.n_items)

    def projected(self, turn: Turn, history: History, rows: Tensor, n_items: int) -> Params:
        """The sums of the devices' pairs of items, between their rows [C, L, dim] and between these and item codes."""
        pairs = {name: places for name, places in self.pairs().items() if places is not None}
        tables = self.tables(turn, pairs, rows.shape[1]).to(rows.device)
        sums = rows.new_zeros(len(rows), self.kinds, self.dim, self.kinds, self.dim)
        next_ = rows.new_zeros(len(rows), self.kinds, self.dim, n_items)
        age, items = history.age.clamp(min=0), history.items[:, None].expand(-1, self.dim, -1)
        for part, (a, b) in enumerate(pairs.values()):
            half = rows.mT @ (tables.value(part, age[:, :, None], age[:, None]) * history.real[:, None])
            if b == TARGET:
                next_[:, a].scatter_add_(2, items, half)
            else:
                sums[:, a, :, b] = half @ rows
                sums[:, b, :, a] = sums[:, a, :, b].mT
        return {SUMS: sums.flatten(3, 4).flatten(1, 2), NEXT: next_.flatten(1, 2)}

    def traffic(self, round_: int, own: Tensor, n_items: int) -> tuple[Tensor, Tensor]:
        turn, wide = self.turn(round_), self.kinds * self.dim
        values = {SKETCH: n_items * self.dim, SUMS: wide * (wide + 1) // 2, NEXT: wide * n_items}
        up = sum(values[name] for name in turn.sends)
        down = torch.full_like(own, wide * n_items * turn.solves)
        if self.sweeps and turn.sends:  # rows of its own items; random ones follow from the seed
            down = down + own * self.dim
        return torch.full_like(own, 4 * up), 4 * down

    def beside(self, turn: Turn, shared: Params, mean: Params) -> Params:
        if SKETCH not in mean:
            return {}
        columns = torch.linalg.qr(mean[SKETCH].double()).Q
        rows = torch.zeros_like(shared["rows"])
        rows[:, : columns.shape[1]] = columns  # no more than there are items
        return {"rows": rows}

    def regression(self, sums: Params) -> tuple[dict[tuple[int, int], Tensor], list[Tensor]]:
        grid, places = sums[SUMS].unflatten(0, (self.kinds, -1)).unflatten(2, (self.kinds, -1)), range(self.kinds)
        blocks = {(a, b): grid[a, :, b] for a in places for b in places if a <= b}
        return blocks, list(sums[NEXT].unflatten(0, (self.kinds, -1)))

    def recall(self, shared: Params, history: History, items: Tensor) -> Params:
        s = self.weights(shared, history) @ shared["rows"][history.items]
        return {"scores": (s.flatten(1) @ shared["weights"].flatten(0, 1)).gather(1, items)}

    def unknown(self, shared: Params, memory: Params) -> Tensor:
        return shared["rows"].sum(0) @ shared["weights"].sum(0)  # as if it had every item
