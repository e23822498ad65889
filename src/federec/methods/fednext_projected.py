"""FedNext, projected - the same regression on histories of short rows, for fewer bytes.

    s_t = sum_{k < t} 2^(-(t-k-1)/h) r_k      r_k: a row of `dim` numbers for item k, instead of its code e(k)
    R <- orthonormal(G R)                     each sweep, from the sum G of devices' co-occurrences, which is never sent

What a device sends then grows with the catalogue, not with its square: (half-lives x dim)^2 / 2 numbers for s s' and
half-lives x dim x items for s y', y as in FedNext, both from one pass over its history. Rows begin at random, from the
seed. A sweep is one step of power iteration: for each of its items a device sends the sum of the rows of all its items.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from federec.cohort.cohort import Cohort
from federec.cohort.draw import History
from federec.cohort.layers import ITEMS, Param, Params
from federec.mathematics.decay import factor, running
from federec.mathematics.windows import together
from federec.methods.forms import SummedMessages
from federec.methods.next_item import NextItem, Turn

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
        before, since = self.projected(turn, history, rows)
        next_ = rows.new_zeros(len(rows), self.kinds * self.dim, cohort.n_items)
        items = history.items[:, None, 1:].expand(-1, next_.shape[1], -1)
        return {SUMS: before.mT @ before, NEXT: next_.scatter_add_(2, items, since.mT)}

    def adds_up(self, round_: int) -> bool:
        return SUMS in self.turn(round_).sends

    def summed(self, cohort: Cohort, shared: Params) -> Params:
        turn, history, wide = self.turn(cohort.round), cohort.history, self.kinds * self.dim
        assert history is not None
        sums, next_ = shared["rows"].new_zeros(wide, wide), shared["rows"].new_zeros(cohort.n_items, wide)
        for some in together(history.counts):
            part = history.of(some)
            rows = shared["rows"][part.items] * part.real[:, :, None]
            before, since = (found.flatten(0, 1) for found in self.projected(turn, part, rows))
            sums.addmm_(before.T, before)
            next_.index_add_(0, part.items[:, 1:].flatten(), since)
        return {SUMS: sums, NEXT: next_.T}

    def fused_form(self, n_items: int) -> SummedMessages:
        wide = self.kinds * self.dim
        return SummedMessages(values=wide * (wide + n_items))

    def projected(self, turn: Turn, history: History, rows: Tensor) -> tuple[Tensor, Tensor]:
        """At the positions t >= 1 of histories with these rows [C, L, dim], side by side for all half-lives: s_t, and
        sum_{k <= t} 2^(-(t-k)/g) s_k, which is what item t is counted for in the sum of s y'. 0 for padding."""
        falls = [factor(half_life, 1.0) for half_life in turn.half_lives]
        real = history.real[:, 1:, None]
        before = torch.cat([running(rows[:, :-1], fall) for fall in falls], 2) * real
        return before, running(before, factor(turn.target, 0.0)) * real

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
