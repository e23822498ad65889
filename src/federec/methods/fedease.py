"""FedEASE - EASE (Steck, WWW 2019) from one sum over devices.

    G = sum_i x_i x_i'                        device i sends the co-occurrence of its own items, once
    B = EASE(G, l2)                           the server solves, in closed form
    s_ij = sum_{k in history i} w_ik B_kj     the device scores, with the rows of B for its own items

The server needs nothing but the sum G, so secure aggregation fits, and the result is EASE's own. Two options use the
order of a device's history; times never leave it:
    recency h   w_ik = 2^(-age/h) + floor, age = newer items the device has. Only the device knows: nothing is sent.
    window t    exp(-|rank_ij - rank_ik| / t) is sent for a pair of items instead of 1. The order then colours what a
                device sends: without secure aggregation the server could read off which items were close in time.
Where noise was added to G for privacy, it shows in G - G', and the server removes what it can (`mathematics.denoise`)
before it solves. `popular` then helps: among fewer items there is less noise.

A round is one trial of (window, popular, l2, recency), the last changing fastest; validation chooses. Only a new window
asks the devices for anything, only a new l2 or number of popular items sends them new rows.
"""

from __future__ import annotations

from itertools import product
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from federec.cohort.cohort import Cohort
from federec.cohort.draw import History
from federec.cohort.layers import ITEMS, Param, Params
from federec.cohort.rows import Rows
from federec.mathematics.denoise import denoised, noise_of
from federec.mathematics.weighted import weighted_sums
from federec.methods.base import DeviceMethod
from federec.methods.ease import item_weights


class Trial(NamedTuple):
    """What a round tries."""

    window: float
    popular: int
    l2: float
    recency: float


class FedEASE(DeviceMethod):
    """Item-item regression in closed form, from the sum of the devices' co-occurrences.

    >>> fr.FedEASE.closed_form
    True
    """

    name: ClassVar[str] = "fedease"
    paper: ClassVar[str] = "ours, after Steck, Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019"
    default_rounds: ClassVar[int] = 1000  # at most: there are as many as trials
    sums: ClassVar[bool] = True
    closed_form: ClassVar[bool] = True
    reads_history: ClassVar[bool] = True

    negatives: Literal[0] = 0
    """None are drawn: every item that is not in a history counts as zero."""
    l2: tuple[PositiveFloat, ...] = Field((30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0), min_length=1)
    """Ridge penalties to try."""
    recency: tuple[NonNegativeFloat, ...] = Field((0.0,), min_length=1)
    """Half-lives to try, in items: how fast a device's older items lose weight when it scores; 0 = never."""
    floor: NonNegativeFloat = 0.05
    """Weight that the oldest items keep under `recency`."""
    window: tuple[NonNegativeFloat, ...] = Field((0.0,), min_length=1)
    """Windows to try, in items: how fast the co-occurrence of two items falls with their distance in a device's order;
    0 = not at all. Each costs an upload."""
    popular: tuple[NonNegativeInt, ...] = Field((0,), min_length=1)
    """Numbers of items to try: only those that occur most have weights, and can be recommended; 0 = all."""
    top: NonNegativeInt = 0
    """Weights a device receives for each of its items, the largest by absolute value; 0 = all."""
    upload: Literal["dense", "sparse"] = "dense"
    """How bytes are counted: `dense`, one half of the symmetric matrix, as secure aggregation needs it; `sparse`, code
    and value of the device's own pairs, which says what they are."""

    @property
    def most_rounds(self) -> int:
        return len(self.window) * len(self.popular) * len(self.l2) * len(self.recency)

    def trial(self, round_: int) -> Trial:
        """What is tried in a round: what costs most changes least."""
        tried = list(product(self.window, self.popular, self.l2, self.recency))
        return Trial(*tried[(round_ - 1) % self.most_rounds])

    def tried(self, round_: int) -> dict[str, Any]:
        return {name: [value] for name, value in self.trial(round_)._asdict().items()}

    def new_window(self, round_: int) -> bool:
        """Whether the devices are asked for their co-occurrence."""
        return (round_ - 1) % (self.most_rounds // len(self.window)) == 0

    def speaks(self, round_: int) -> bool:
        return self.new_window(round_)

    def new_items(self, round_: int) -> bool:
        """Whether there are other items to solve for, or other sums."""
        return (round_ - 1) % (len(self.l2) * len(self.recency)) == 0

    def new_weights(self, round_: int) -> bool:
        """Whether the server solves again."""
        return (round_ - 1) % len(self.recency) == 0

    def shared(self) -> dict[str, Param]:
        return {"weights": Param((ITEMS, ITEMS), "zeros"), "recency": Param((1,), "zeros")}

    def sends(self) -> dict[str, Param]:
        return {"gram": Param((ITEMS,), rows=True)}

    def fetch(self, shared: Params, users: Tensor, rows: Rows) -> tuple[Params, Params]:
        return {}, {}  # nothing is needed before the sum is known

    def fit(self, cohort: Cohort) -> None:
        """Nothing to learn on the device."""

    def message(self, cohort: Cohort, shared: Params) -> Params:
        if not self.new_window(cohort.round):
            return {}
        window, owner, history = self.trial(cohort.round).window, cohort.rows.owner, cohort.history
        assert history is not None
        age = torch.zeros_like(owner)
        age[cohort.own_rows()[history.real]] = history.age[history.real]  # of each (device, item) row
        value = history.real[owner].float()
        if window:
            value *= torch.exp(-(age[:, None] - history.age[owner]).abs() / window)
        gram = value.new_zeros(len(owner), cohort.n_items)
        return {"gram": gram.scatter_add_(1, history.items[owner], value)}

    def upload_bytes(self, cohort: Cohort, message: Params) -> Tensor:
        own = cohort.rows.counts(len(cohort))
        if not message:
            return torch.zeros_like(own)
        n = torch.full_like(own, cohort.n_items) if self.upload == "dense" else own
        return n * (n + 1) // 2 * (4 if self.upload == "dense" else 8)

    def download_bytes(self, cohort: Cohort) -> Tensor:
        row = 8 * self.top if 0 < 2 * self.top < cohort.n_items else 4 * cohort.n_items
        return cohort.rows.counts(len(cohort)) * row * self.new_weights(cohort.round)

    def server_start(self, shared: Params) -> Params:
        weights = shared["weights"]
        return {"gram": torch.zeros_like(weights), "round": weights.new_zeros(1)}

    def server_step(self, shared: Params, mean: Params, memory: Params) -> Params:
        memory["round"] += 1
        round_ = int(memory["round"])
        if "gram" in mean:
            memory["gram"] = mean["gram"]
        trial = self.trial(round_)
        if self.new_items(round_):
            memory.pop("denoised", None)
        weights = self.solve(memory, trial) if self.new_weights(round_) else shared["weights"]
        return {"weights": weights, "recency": torch.full_like(shared["recency"], trial.recency)}

    def solve(self, memory: Params, trial: Trial) -> Tensor:
        """EASE's weights between the popular items, of which only the `top` of each row remain."""
        gram, n_items = memory["gram"], len(memory["gram"])
        noise = noise_of(gram)
        gram = (gram + gram.T) / 2
        if 0 < trial.popular < n_items:
            kept = gram.diagonal().topk(trial.popular).indices.sort().values
            weights = torch.zeros_like(gram)
            weights[kept[:, None], kept] = self.regression(gram[kept[:, None], kept], noise, trial.l2, memory)
        else:
            weights = self.regression(gram, noise, trial.l2, memory)
        if 0 < self.top < n_items:
            best = weights.abs().topk(self.top, dim=1).indices
            weights = torch.zeros_like(weights).scatter_(1, best, weights.gather(1, best))
        return weights

    def regression(self, gram: Tensor, noise: float, l2: float, memory: Params) -> Tensor:
        """EASE's weights from a symmetric sum under noise of this standard deviation. What is left of it without noise
        is kept for the next penalty."""
        try:
            if noise:
                gram = memory["denoised"] = memory["denoised"] if "denoised" in memory else denoised(gram, noise)
            return item_weights(gram, l2).contiguous()  # as it will be when read from a file
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return torch.full_like(gram, torch.nan)  # too much noise for this l2: the trial ranks nothing, others may

    def item_weight(self, shared: Params, history: History) -> Tensor:
        """[C, L] weights of the devices' items, 0 for padding."""
        half_life = float(shared["recency"])
        weight = history.real.float()
        if half_life:
            weight *= 0.5 ** (history.age.clamp(min=0) / half_life) + self.floor
        return weight

    def recall(self, shared: Params, history: History, items: Tensor) -> Params:
        weight, real = self.item_weight(shared, history), history.real
        scores = weighted_sums(history.counts, history.items[real], weight[real], shared["weights"])
        return {"scores": scores.gather(1, items)}

    def unknown(self, shared: Params, memory: Params) -> Tensor:
        return memory["gram"].diagonal()  # how many devices have each item

    def item_vectors(self, model: Params) -> Tensor:
        return model["weights"]

    def score(self, p: Params) -> Tensor:
        return p["scores"]
