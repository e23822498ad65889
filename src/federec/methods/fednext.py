"""FedNext - the next item from decayed histories, in closed form, from one sum over devices.

    s_t = sum_{k < t} 2^(-(t-k-1)/h) e(k)     what device i had before position t; several half-lives h side by side
    y_t = sum_{k >= t} 2^(-(k-t)/g) e(k)      what came from there on; g = 0: only the next item
    B = (sum_it s s' + diag(l2))^-1 sum_it s y'           the server solves
    score = B' s at the end of the device's history       with the rows of B for its own items

Devices send both sums over their positions, and the result is that of pooled data. The sums over the positions of one
device have closed forms (`mathematics.decay`): numbers for each pair of its items. A `blend` adds EASE, whose matrix is
a sum of the same kind, scored with recency as in FedEASE. The order of a device's history colours what it sends;
secure aggregation hides it.

A round is one trial of (half-lives, target, l2, blend), the last changing fastest (`methods.next_item`). Only new
half-lives or a new target ask the devices for anything, only a new l2 sends them new rows.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from federec.cohort.cohort import Cohort
from federec.cohort.draw import History
from federec.cohort.layers import ITEMS, Param, Params
from federec.mathematics.decay import PairTables
from federec.mathematics.weighted import weighted_sums
from federec.methods.ease import item_weights
from federec.methods.forms import DecayedPairs
from federec.methods.next_item import NextItem, Places, Turn, faded

GRAM = "gram"


class FedNext(NextItem):
    """The next item by regression on decayed histories, in closed form, from sums over devices.

    >>> fr.FedNext(half_lives=[[2.0, 20.0]], blend=[0.0]).most_rounds
    1
    """

    name: ClassVar[str] = "fednext"
    paper: ClassVar[str] = "ours; a linear model of the next item, after EASE (Steck, WWW 2019)"

    blend: tuple[NonNegativeFloat, ...] = Field((0.3, 1.0), min_length=1)
    """Weights to try of EASE's scores beside those of the decayed histories, both standardised over all items;
    0 = no EASE. If all are 0, its matrix is not sent."""
    ease_l2: PositiveFloat = 400.0
    """Ridge penalty of EASE."""
    recency: NonNegativeFloat = 4.0
    """Half-life with which a device weighs its items for EASE, in items; 0 = never."""
    floor: NonNegativeFloat = 0.1
    """Weight that the oldest items keep under `recency`."""
    blocks: PositiveInt = 1
    """Rounds over which devices spread what they send. The model is there after the last one, and is the same."""

    def blends(self) -> tuple[float, ...]:
        return self.blend

    def tried(self, round_: int) -> dict[str, Any]:
        return super().tried(round_) | {"blend": [self.turn(round_).blend]}

    def pairs(self) -> dict[str, Places]:
        return super().pairs() | ({GRAM: None} if any(self.blend) else {})

    def asked_for(self, first: bool) -> list[tuple[str, ...]]:
        names = tuple(name for name in self.pairs() if first or name != GRAM)
        size = -(-len(names) // self.blocks)
        return [names[start : start + size] for start in range(0, len(names), size)]

    def shared(self) -> dict[str, Param]:
        known = {"weights": Param((self.kinds, ITEMS, ITEMS), "zeros"), "half_lives": Param((self.kinds,), "zeros")}
        if any(self.blend):
            known |= {"ease": Param((ITEMS, ITEMS), "zeros"), "blend": Param((1,), "zeros")}
        return known

    def sends(self) -> dict[str, Param]:
        return {name: Param((ITEMS,), rows=True) for name in self.pairs()}

    def message(self, cohort: Cohort, shared: Params) -> Params:
        turn, history, owner = self.turn(cohort.round), cohort.history, cohort.rows.owner
        assert history is not None
        if not turn.sends:
            return {}
        age = torch.zeros_like(owner)
        age[cohort.own_rows()[history.real]] = history.age[history.real]  # of each (device, item) row
        first, second, real = age[:, None], history.age[owner].clamp(min=0), history.real[owner]
        tables, sent = self.worth(turn, history.items.shape[1]).to(owner.device), {}
        for part, name in enumerate(turn.sends):
            value = tables.value(part, first, second) * real
            sent[name] = value.new_zeros(len(owner), cohort.n_items).scatter_add_(1, history.items[owner], value)
        return sent

    def worth(self, turn: Turn, longest: int) -> PairTables:
        """What pairs of items are worth in the sums that devices are asked for."""
        sums = self.pairs()
        return self.tables(turn, {name: sums[name] for name in turn.sends}, longest)

    def fused_form(self, n_items: int) -> DecayedPairs:
        return DecayedPairs(
            parts=lambda round_: self.turn(round_).sends,
            tables=lambda round_, longest: self.worth(self.turn(round_), longest),
            traffic=self.traffic,
        )

    def traffic(self, round_: int, own: Tensor, n_items: int) -> tuple[Tensor, Tensor]:
        turn, sums, up = self.turn(round_), self.pairs(), 0
        for name in turn.sends:
            places = sums[name]
            symmetric = places is None or places[0] == places[1]  # then one half is sent
            up += n_items * (n_items + 1) // 2 if symmetric else n_items * n_items
        row = n_items * (self.kinds + any(self.blend)) * turn.solves
        return torch.full_like(own, 4 * up), 4 * own * row

    def beside(self, turn: Turn, shared: Params, mean: Params) -> Params:
        new: Params = {}
        if GRAM in mean:
            gram = (mean[GRAM] + mean[GRAM].T) / 2
            try:
                new["ease"] = item_weights(gram, self.ease_l2).contiguous()  # as it will be when read from a file
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                new["ease"] = torch.full_like(gram, torch.nan)  # too much noise: trials without a blend may rank
        if any(self.blend) and not turn.waits:
            new["blend"] = torch.full_like(shared["blend"], turn.blend)
        return new

    def regression(self, sums: Params) -> tuple[dict[tuple[int, int], Tensor], list[Tensor]]:
        places = range(self.kinds)
        blocks = {(a, b): sums[f"sums.{a}.{b}"] for a in places for b in places if a <= b}
        return blocks, [sums[f"next.{a}"] for a in places]

    def recall(self, shared: Params, history: History, items: Tensor) -> Params:
        weight, n_items = self.weights(shared, history), shared["weights"].shape[1]
        places = history.items[:, None] + n_items * torch.arange(self.kinds, device=weight.device)[:, None]
        real, table = history.real[:, None].expand_as(weight), shared["weights"].flatten(0, 1)
        scores = weighted_sums(self.kinds * history.counts, places[real], weight[real], table)
        blend = float(shared["blend"]) if any(self.blend) else 0.0
        if blend:
            weight, own = faded(history, self.recency) + self.floor, history.real
            beside = weighted_sums(history.counts, history.items[own], weight[own], shared["ease"])
            scores = _standardised(scores) + blend * _standardised(beside)  # the same for any items asked for
        return {"scores": scores.gather(1, items)}

    def unknown(self, shared: Params, memory: Params) -> Tensor:
        return shared["weights"].sum((0, 1))  # as if it had every item


def _standardised(scores: Tensor) -> Tensor:
    """Each device's scores with mean 0 and standard deviation 1."""
    scores = scores - scores.mean(1, keepdim=True)
    return scores / scores.square().mean(1, keepdim=True).sqrt().clamp(min=1e-12)
