"""FedNext - the next item from decayed histories, in closed form, from one sum over devices.

    s_t = sum_{k < t} 2^(-(t-k-1)/h) e(k)     what device i had before position t; several half-lives h side by side
    y_t = sum_{k >= t} 2^(-(k-t)/g) e(k)      what came from there on; g = 0: only the next item
    B = (sum_it s s' + diag(l2))^-1 sum_it s y'           the server solves
    score = B' s at the end of the device's history       with the rows of B for its own items

Both sums are over positions and devices, so devices send sums, and the result is that of pooled data. Over the
positions of one device they have closed forms (`mathematics.decay`): a number for each pair of its items. A `blend`
adds EASE, whose matrix is a sum of the same kind, scored with recency as in FedEASE. The order of a device's history
colours what it sends; secure aggregation hides it.

A round is one trial of (half-lives, target, l2, blend), the last changing fastest; validation chooses. Only new
half-lives or a new target ask the devices for anything, only a new l2 sends them new rows. What a device sends at once
can be made smaller: in `blocks`, over several rounds, or projected, with rows of `dim` numbers instead of item codes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, field_validator
from torch import Tensor

from federec.cohort.cohort import Cohort
from federec.cohort.draw import History
from federec.cohort.layers import ITEMS, Param, Params
from federec.cohort.rows import Rows
from federec.mathematics.decay import PairTables, before_and_after, both_before, factor, side_by_side, together
from federec.mathematics.ridge import ridge_
from federec.methods.base import DeviceMethod
from federec.methods.ease import item_weights
from federec.methods.forms import DecayedPairs

GRAM, SKETCH, SUMS, NEXT = "gram", "sketch", "sums", "next"

HalfLives = tuple[NonNegativeFloat, ...]


class Turn(NamedTuple):
    """What happens in a round."""

    half_lives: HalfLives
    target: float
    l2: float
    blend: float
    sends: tuple[str, ...] = ()
    """What devices are asked for."""
    waits: bool = False
    """Whether more must be sent before there is a model to try."""
    solves: bool = False
    """Whether the server solves for new weights."""
    last: bool = False
    """Whether it is the last time that the server solves with these sums."""


class FedNext(DeviceMethod):
    """The next item by regression on decayed histories, in closed form, from sums over devices.

    >>> fr.FedNext(half_lives=[[2.0, 20.0]], blend=[0.0]).most_rounds
    1
    """

    name: ClassVar[str] = "fednext"
    paper: ClassVar[str] = "ours; a linear model of the next item, after EASE (Steck, WWW 2019)"
    default_rounds: ClassVar[int] = 1000  # at most: there are as many as trials
    sums: ClassVar[bool] = True
    closed_form: ClassVar[bool] = True

    negatives: Literal[0] = 0
    """None are drawn: every item that did not come counts as zero."""
    half_lives: tuple[HalfLives, ...] = Field(((1.0, 8.0, 0.0),), min_length=1)
    """Sets of half-lives to try, in items, each from short to long: how fast older items lose weight in a history;
    0 = never. All sets have the same size. Each costs an upload."""
    target: tuple[NonNegativeFloat, ...] = Field((1.0,), min_length=1)
    """Half-lives to try of what is predicted, in items; 0 = only the next item. Each costs an upload."""
    l2: tuple[PositiveFloat, ...] = Field((300.0,), min_length=1)
    """Ridge penalties to try, of the shortest half-life."""
    rise: PositiveFloat = 5.0
    """How many times larger the penalty of each half-life is than that of the one before it."""
    blend: tuple[NonNegativeFloat, ...] = Field((0.3, 1.0), min_length=1)
    """Weights to try of EASE's scores beside those of the decayed histories, both standardised over the items that a
    device scores; 0 = no EASE. If all are 0, its matrix is not sent."""
    ease_l2: PositiveFloat = 400.0
    """Ridge penalty of EASE."""
    recency: NonNegativeFloat = 4.0
    """Half-life with which a device weighs its items for EASE, in items; 0 = never."""
    floor: NonNegativeFloat = 0.1
    """Weight that the oldest items keep under `recency`."""
    upload: Literal["dense", "projected"] = "dense"
    """`dense`: numbers for each pair of items. `projected`: histories are sums of rows of `dim` numbers instead of
    item codes, so that what is sent grows with the catalogue, not with its square; there is no `blend`."""
    blocks: PositiveInt = 1
    """Rounds over which devices spread what they send of `dense`. The model is there after the last one."""
    dim: PositiveInt = 64
    """Width of an item row of `projected`."""
    sweeps: NonNegativeInt = 2
    """Rounds before the first trial in which rows are learned from the devices' co-occurrence, by power iteration;
    0 = random rows."""

    @field_validator("half_lives")
    @classmethod
    def _same_size(cls, sets: tuple[HalfLives, ...]) -> tuple[HalfLives, ...]:
        if not all(sets) or len({len(one) for one in sets}) > 1:
            raise ValueError("all sets need the same number of half-lives, at least one")
        return sets

    @property
    def projected(self) -> bool:
        return self.upload == "projected"

    @property
    def blends(self) -> bool:
        """Whether EASE is part of it."""
        return not self.projected and any(self.blend)

    @property
    def most_rounds(self) -> int:
        return len(self.turns())

    def turns(self) -> list[Turn]:
        """What happens in each round: what costs most changes least."""
        blends = (0.0,) if self.projected else self.blend
        turns: list[Turn] = []
        for half_lives, target in product(self.half_lives, self.target):
            *early, final = self.asked_for(first=not turns)
            turns += [Turn(half_lives, target, self.l2[0], blends[0], sends, waits=True) for sends in early]
            for number, (l2, blend) in enumerate(product(self.l2, blends)):
                solves, last = number % len(blends) == 0, number == (len(self.l2) - 1) * len(blends)
                turns.append(Turn(half_lives, target, l2, blend, () if number else final, False, solves, last))
        return turns

    def turn(self, round_: int) -> Turn:
        """What happens in a round."""
        turns = self.turns()
        return turns[(round_ - 1) % len(turns)]

    def asked_for(self, first: bool) -> list[tuple[str, ...]]:
        """What devices send before the first trial of some half-lives and target, round by round. `first`: nothing has
        been sent before."""
        if self.projected:
            return [(SKETCH,)] * (self.sweeps if first else 0) + [(SUMS, NEXT)]
        parts = tuple(name for name in self.parts() if first or name != GRAM)
        size = -(-len(parts) // self.blocks)
        return [parts[start : start + size] for start in range(0, len(parts), size)]

    def parts(self) -> dict[str, tuple[int, int] | None]:
        """The sums of pairs: by name, the places of two half-lives of a history; (place, -1) for a half-life and the
        target; None for the co-occurrence."""
        places = range(len(self.half_lives[0]))
        parts: dict[str, tuple[int, int] | None] = {f"{SUMS}.{a}.{b}": (a, b) for a in places for b in places if a <= b}
        parts |= {f"{NEXT}.{a}": (a, -1) for a in places}
        return parts | ({GRAM: None} if self.blends else {})

    def tables(self, turn: Turn, names: tuple[str, ...], longest: int) -> PairTables:
        """What pairs of items are worth in these sums."""
        falls = [factor(half_life, 1.0) for half_life in turn.half_lives]
        parts, found = self.parts(), []
        for name in names:
            places = parts[name]
            if places is None:
                found.append(together(longest))
            elif places[1] < 0:
                found.append(before_and_after(falls[places[0]], factor(turn.target, 0.0), longest))
            else:
                found.append(both_before(falls[places[0]], falls[places[1]], longest))
        return side_by_side(found)

    def shared(self) -> dict[str, Param]:
        kinds = len(self.half_lives[0])
        width = self.dim if self.projected else ITEMS
        known = {"weights": Param((kinds, width, ITEMS), "zeros"), "half_lives": Param((kinds,), "zeros")}
        if self.projected:
            known["rows"] = Param((ITEMS, self.dim), scale=self.dim**-0.5)
        if self.blends:
            known |= {"ease": Param((ITEMS, ITEMS), "zeros"), "blend": Param((1,), "zeros")}
        return known

    def sends(self) -> dict[str, Param]:
        if not self.projected:
            return {name: Param((ITEMS,), rows=True) for name in self.parts()}
        wide = len(self.half_lives[0]) * self.dim
        sketch = {SKETCH: Param((self.dim,), rows=True)} if self.sweeps else {}
        return {**sketch, SUMS: Param((wide, wide)), NEXT: Param((wide, ITEMS))}

    def fetch(self, shared: Params, users: Tensor, rows: Rows) -> tuple[Params, Params]:
        return {}, {}  # nothing is needed before the sums are known; rows of a projection are looked up in `message`

    def fit(self, cohort: Cohort) -> None:
        """Nothing to learn on the device."""

    def message(self, cohort: Cohort, shared: Params) -> Params:
        turn, history = self.turn(cohort.round), cohort.history
        assert history is not None
        if not turn.sends:
            return {}
        if self.projected:
            return self.sketch(cohort, shared) if SKETCH in turn.sends else self.projections(turn, history, shared)
        owner = cohort.rows.owner
        age = torch.zeros_like(owner)
        age[cohort.own_rows()[history.real]] = history.age[history.real]  # of each (device, item) row
        first, second, real = age[:, None], history.age[owner].clamp(min=0), history.real[owner]
        tables = _on(self.tables(turn, turn.sends, history.items.shape[1]), owner)
        sent = {}
        for part, name in enumerate(turn.sends):
            value = tables.value(part, first, second) * real
            sent[name] = value.new_zeros(len(owner), cohort.n_items).scatter_add_(1, history.items[owner], value)
        return sent

    def sketch(self, cohort: Cohort, shared: Params) -> Params:
        """The co-occurrence of a device's items times the rows: for each of them the sum of the rows of all."""
        history = cohort.history
        assert history is not None
        total = (shared["rows"][history.items] * history.real[:, :, None]).sum(1)
        return {SKETCH: total[cohort.rows.owner]}

    def projections(self, turn: Turn, history: History, shared: Params) -> Params:
        """The sums of pairs between the rows of a device's items, and between these and item codes."""
        rows = shared["rows"][history.items] * history.real[:, :, None]
        parts = {name: places for name, places in self.parts().items() if places is not None}
        tables = _on(self.tables(turn, tuple(parts), rows.shape[1]), rows)
        devices, kinds, n_items = len(rows), len(turn.half_lives), len(shared["rows"])
        sums = rows.new_zeros(devices, kinds, self.dim, kinds, self.dim)
        next_ = rows.new_zeros(devices, kinds, self.dim, n_items)
        age, items = history.age.clamp(min=0), history.items[:, None].expand(-1, self.dim, -1)
        for part, (a, b) in enumerate(parts.values()):
            value = tables.value(part, age[:, :, None], age[:, None]) * history.real[:, None]
            half = rows.mT @ value
            if b < 0:
                next_[:, a].scatter_add_(2, items, half)
            else:
                sums[:, a, :, b] = half @ rows
                sums[:, b, :, a] = sums[:, a, :, b].mT
        return {SUMS: sums.flatten(3, 4).flatten(1, 2), NEXT: next_.flatten(1, 2)}

    def traffic(self, round_: int, own: Tensor, n_items: int) -> tuple[Tensor, Tensor]:
        """Bytes that devices with this many own items send and receive. Of a symmetric sum they send one half."""
        turn, kinds = self.turn(round_), len(self.half_lives[0])
        wide = kinds * self.dim
        values = {SKETCH: n_items * self.dim, SUMS: wide * (wide + 1) // 2, NEXT: wide * n_items}
        for name, places in self.parts().items():
            symmetric = places is None or places[0] == places[1]
            values[name] = n_items * (n_items + 1) // 2 if symmetric else n_items * n_items
        up = sum(values[name] for name in turn.sends)
        down = torch.zeros_like(own)
        if turn.solves:
            row = kinds * n_items + (n_items if self.blends else 0)
            down = torch.full_like(own, wide * n_items) if self.projected else own * row
        if self.projected and self.sweeps and turn.sends:  # learned rows; random ones follow from the seed
            down = down + own * self.dim
        return torch.full_like(own, 4 * up), 4 * down

    def upload_bytes(self, cohort: Cohort, message: Params) -> Tensor:
        return self.traffic(cohort.round, cohort.rows.counts(len(cohort)), cohort.n_items)[0]

    def download_bytes(self, cohort: Cohort) -> Tensor:
        return self.traffic(cohort.round, cohort.rows.counts(len(cohort)), cohort.n_items)[1]

    def fused_form(self, n_items: int) -> DecayedPairs | None:
        if self.projected:
            return None
        return DecayedPairs(
            parts=lambda round_: self.turn(round_).sends,
            tables=lambda round_, longest: self.tables(self.turn(round_), self.turn(round_).sends, longest),
            traffic=self.traffic,
        )

    def server_start(self, shared: Params) -> Params:
        none = shared["weights"].new_zeros(0)
        kept = (name for name in self.sends() if name not in (SKETCH, GRAM))
        return {"round": none.new_zeros(1), **{name: none.clone() for name in kept}}

    def server_step(self, shared: Params, mean: Params, memory: Params) -> Params:
        memory["round"] += 1
        turn = self.turn(int(memory["round"]))
        new: Params = {}
        for name, total in mean.items():
            if name == SKETCH:
                new["rows"] = torch.linalg.qr(total.double()).Q.float().contiguous()
            elif name == GRAM:
                new["ease"] = _or_nan(partial(item_weights, (total + total.T) / 2, self.ease_l2), total)
            else:
                memory[name] = total
        kept = [name for name in memory if name != "round"]
        if turn.solves and all(memory[name].numel() for name in kept):  # in a network a round may be lost
            new["weights"] = _or_nan(partial(self.solve, memory, turn.l2), shared["weights"])
            new["half_lives"] = torch.tensor(turn.half_lives).to(shared["half_lives"])
        if turn.last:  # the sums take much more memory than the model
            memory.update({name: memory[name].new_zeros(0) for name in kept})
        if self.blends and not turn.waits:
            new["blend"] = torch.full_like(shared["blend"], turn.blend)
        return {**shared, **new}

    def solve(self, memory: Params, l2: float) -> Tensor:
        """The weights [half-lives, width, items] of these sums."""
        kinds = len(self.half_lives[0])
        places = range(kinds)
        if self.projected:
            sums = memory[SUMS].unflatten(0, (kinds, -1)).unflatten(2, (kinds, -1))
            blocks = {(a, b): sums[a, :, b] for a in places for b in places}
            next_ = list(memory[NEXT].unflatten(0, (kinds, -1)))
        else:
            blocks = {(a, b): memory[f"{SUMS}.{a}.{b}"] for a in places for b in places if a <= b}
            next_ = [memory[f"{NEXT}.{a}"] for a in places]
        width, n_items = next_[0].shape
        system = next_[0].new_empty(kinds, width, kinds, width, dtype=torch.float64)
        for (a, b), block in blocks.items():
            system[b, :, a] = block.mT
            system[a, :, b] = block
        for a in places:
            system[a, :, a].diagonal().add_(l2 * self.rise**a)
        target = next_[0].new_empty(n_items, kinds, width, dtype=torch.float64)
        for a in places:
            target[:, a] = next_[a].mT
        solved = ridge_(system.view(kinds * width, -1), target.view(n_items, -1))
        del system
        return solved.float().view(kinds, width, n_items).contiguous()

    def recall(self, shared: Params, history: History, items: Tensor) -> Params:
        weight = torch.stack([_faded(history, half_life) for half_life in shared["half_lives"].tolist()], 1)
        if self.projected:
            s = weight @ shared["rows"][history.items]
        else:
            s = _by_item(weight, history, shared["weights"].shape[1])
        scores = (s.flatten(1) @ shared["weights"].flatten(0, 1)).gather(1, items)
        blend = float(shared["blend"]) if self.blends else 0.0
        if blend:
            weight = _faded(history, self.recency) + self.floor * history.real
            x = _by_item(weight[:, None], history, len(shared["ease"]))[:, 0]
            scores = _standardised(scores) + blend * _standardised((x @ shared["ease"]).gather(1, items))
        return {"scores": scores}

    def score(self, p: Params) -> Tensor:
        return p["scores"]


def _faded(history: History, half_life: float) -> Tensor:
    """[C, L] weights of the devices' items at the end of their histories."""
    weight = history.real.float()
    return weight * 0.5 ** (history.age.clamp(min=0) / half_life) if half_life else weight


def _by_item(weight: Tensor, history: History, n_items: int) -> Tensor:
    """[C, kinds, n_items] weights of all items, from those [C, kinds, L] of the devices' histories."""
    items = history.items[:, None].expand_as(weight)
    return weight.new_zeros(*weight.shape[:2], n_items).scatter_add_(2, items, weight)


def _standardised(scores: Tensor) -> Tensor:
    """Each device's scores with mean 0 and standard deviation 1."""
    scores = scores - scores.mean(1, keepdim=True)
    return scores / scores.square().mean(1, keepdim=True).sqrt().clamp(min=1e-12)


def _or_nan(solve: Callable[[], Tensor], like: Tensor) -> Tensor:
    """What is solved for; not a number where there is too much noise for this l2: such a trial ranks nothing, others
    may."""
    try:
        return solve().contiguous()  # as it will be when read from a file
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return torch.full_like(like, torch.nan)


def _on(tables: PairTables, values: Tensor) -> PairTables:
    """The tables on the device that the values are on."""
    return PairTables(*(table.to(values.device) for table in tables))
