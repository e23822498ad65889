"""What methods share that predict the next item from decayed histories, in closed form, from sums over devices.

    s_t = sum_{k < t} 2^(-(t-k-1)/h) e(k)     what a device had before position t; several half-lives h side by side
    y_t = sum_{k >= t} 2^(-(k-t)/g) e(k)      what came from there on; g = 0: only the next item
    B = (sum s s' + diag(l2))^-1 sum s y'     over all positions t >= 1 of all devices; the server solves

A round is one trial of settings, and validation chooses. Only new half-lives or a new target ask devices for anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, field_validator
from torch import Tensor

from federec.cohort.cohort import Cohort
from federec.cohort.draw import History
from federec.cohort.layers import Params
from federec.cohort.rows import Rows
from federec.mathematics.decay import PairTables, before_and_after, both_before, factor, side_by_side, together
from federec.mathematics.ridge import block_ridge
from federec.methods.base import DeviceMethod

HalfLives = tuple[NonNegativeFloat, ...]

TARGET = -1
"""In a pair of places of half-lives: the target."""
Places = tuple[int, int] | None
"""The sum that pairs of items are worth: of two half-lives of a history, of one and the target, or, with None, how
often the two occur together."""


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


class NextItem(DeviceMethod):
    """Sums over the positions of devices' histories become weights [half-lives, width, items]."""

    default_rounds: ClassVar[int] = 1000  # at most: there are as many as trials
    sums: ClassVar[bool] = True
    closed_form: ClassVar[bool] = True
    reads_history: ClassVar[bool] = True
    sends_parts: ClassVar[bool] = True

    negatives: Literal[0] = 0
    """None are drawn: every item that did not come counts as zero."""
    half_lives: tuple[HalfLives, ...] = Field(((1.0, 8.0, 0.0),), min_length=1)
    """Sets of half-lives to try, in items, each from short to long: how fast older items lose weight in a history;
    0 = never. All sets have the same size. Each costs an upload."""
    target: tuple[NonNegativeFloat, ...] = Field((1.0,), min_length=1)
    """Half-lives to try of what is predicted, in items; 0 = only the next item. Each costs an upload."""
    l2: tuple[PositiveFloat, ...] = Field((300.0,), min_length=1)
    """Ridge penalties to try, of the first half-life."""
    rise: PositiveFloat = 5.0
    """How many times larger the penalty of each half-life is than that of the one before it."""

    @field_validator("half_lives")
    @classmethod
    def _same_size(cls, sets: tuple[HalfLives, ...]) -> tuple[HalfLives, ...]:
        if not all(sets) or len({len(one) for one in sets}) > 1:
            raise ValueError("all sets need the same number of half-lives, at least one")
        return sets

    @property
    def kinds(self) -> int:
        """The number of half-lives side by side."""
        return len(self.half_lives[0])

    @property
    def most_rounds(self) -> int:
        return len(self.turns())

    def blends(self) -> tuple[float, ...]:
        """Weights to try of what is scored beside."""
        return (0.0,)

    def asked_for(self, first: bool) -> list[tuple[str, ...]]:
        """What devices send before the first trial of some half-lives and target, round by round. `first`: nothing has
        been sent before."""
        raise NotImplementedError(f"{type(self).__name__}.asked_for")

    def turns(self) -> list[Turn]:
        """What happens in each round: what costs most changes least."""
        turns: list[Turn] = []
        blends = self.blends()
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

    def speaks(self, round_: int) -> bool:
        return bool(self.turn(round_).sends)

    def tried(self, round_: int) -> dict[str, Any]:
        turn = self.turn(round_)
        return {"half_lives": [list(turn.half_lives)], "target": [turn.target], "l2": [turn.l2]}

    def pairs(self) -> dict[str, Places]:
        """The sums over pairs of items that make up both sums over positions, by name."""
        places = range(self.kinds)
        sums: dict[str, Places] = {f"sums.{a}.{b}": (a, b) for a in places for b in places if a <= b}
        return sums | {f"next.{a}": (a, TARGET) for a in places}

    def tables(self, turn: Turn, sums: Mapping[str, Places], longest: int) -> PairTables:
        """What pairs of items are worth in these sums, for histories up to a length."""
        falls, found = [factor(half_life, 1.0) for half_life in turn.half_lives], []
        for places in sums.values():
            if places is None:
                found.append(together(longest))
            elif places[1] == TARGET:
                found.append(before_and_after(falls[places[0]], factor(turn.target, 0.0), longest))
            else:
                found.append(both_before(falls[places[0]], falls[places[1]], longest))
        return side_by_side(found)

    def fetch(self, shared: Params, users: Tensor, rows: Rows) -> tuple[Params, Params]:
        return {}, {}  # there is no model before the sums are known

    def fit(self, cohort: Cohort) -> None:
        """Nothing to learn on the device."""

    def traffic(self, round_: int, own: Tensor, n_items: int) -> tuple[Tensor, Tensor]:
        """Bytes that devices with this many own items send and receive in a round."""
        raise NotImplementedError(f"{type(self).__name__}.traffic")

    def upload_bytes(self, cohort: Cohort, message: Params) -> Tensor:
        return self.traffic(cohort.round, cohort.rows.counts(len(cohort)), cohort.n_items)[0]

    def download_bytes(self, cohort: Cohort) -> Tensor:
        return self.traffic(cohort.round, cohort.rows.counts(len(cohort)), cohort.n_items)[1]

    def server_start(self, shared: Params) -> Params:
        kept = {name for sends in self.asked_for(first=False) for name in sends}
        empty = {name: shared["weights"].new_zeros(0) for name in sorted(kept)}
        return {"round": shared["weights"].new_zeros(1), **empty}

    def server_step(self, shared: Params, mean: Params, memory: Params) -> Params:
        memory["round"] += 1
        turn = self.turn(int(memory["round"]))
        memory.update({name: total for name, total in mean.items() if name in memory})
        sums = {name: total for name, total in memory.items() if name != "round"}
        new = self.beside(turn, shared, mean)
        if turn.solves and all(total.numel() for total in sums.values()):  # in a network a round may be lost
            penalties = [turn.l2 * self.rise**place for place in range(self.kinds)]
            new["weights"] = block_ridge(*self.regression(sums), penalties)
            new["half_lives"] = torch.tensor(turn.half_lives).to(shared["half_lives"])
        if turn.last:  # the sums take much more memory than the model
            memory.update({name: total.new_zeros(0) for name, total in sums.items()})
        return {**shared, **new}

    def beside(self, turn: Turn, shared: Params, mean: Params) -> Params:
        """Shared parameters besides the weights that a round changes."""
        return {}

    def regression(self, sums: Params) -> tuple[dict[tuple[int, int], Tensor], list[Tensor]]:
        """What the server solves with: see `block_ridge`."""
        raise NotImplementedError(f"{type(self).__name__}.regression")

    def weights(self, shared: Params, history: History) -> Tensor:
        """[C, half-lives, L] weights of the devices' items at the end of their histories."""
        return torch.stack([faded(history, half_life) for half_life in shared["half_lives"].tolist()], 1)

    def score(self, p: Params) -> Tensor:
        return p["scores"]


def faded(history: History, half_life: float) -> Tensor:
    """[C, L] 2^(-age / half-life) of the devices' items, 0 for padding."""
    weight = history.real.float()
    return weight * 0.5 ** (history.age.clamp(min=0) / half_life) if half_life else weight
