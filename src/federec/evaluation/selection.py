"""Which round is best is decided on validation. Ranking all items for everybody in every round would take longer than
learning does, so a fixed random sample of users is ranked, in as many rounds as that takes at most 15 % of their time.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from federec import streams
from federec.data.split import Split
from federec.evaluation.evaluator import Evaluator, Part, Report, Score, score_all
from federec.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

LEAST, ENOUGH = 190, 1000
"""Users in a sample, where there are so many: the first number is what keeps FedNCF on Lastfm-2K within 15 %, and with
fewer users metrics would say still less; above the second, more rounds are worth more than more users."""

_RANKED = 10
"""Rounds of a run that are ranked at least. Few rounds with many users pick better ones than many with few users."""


class Schedule(NamedTuple):
    """Who is ranked against all items during training, and when."""

    users: int
    every: int
    """Rounds from one ranking to the next."""


def schedule(samples: float, evaluated: int, n_items: int, rounds: int, patience: int | None = None) -> Schedule:
    """The schedule of a run with so many samples to learn from in a round. It depends on counts only, so that every
    machine and engine chooses the same round.

    To learn from a sample takes as long as to score some items, and each evaluated user scores 200 of them in a round
    anyway. The factors are the smallest that were measured over methods and engines (`benchmarks/selection.py`). A run
    with `patience` is ranked at least four times in so many rounds: only a ranked round can be a better one.
    """
    affordable = (0.2 * samples + 0.07 * 200 * evaluated) / n_items
    if affordable >= evaluated:
        return Schedule(evaluated, 1)
    longest = max(1, rounds // _RANKED)
    most = longest if patience is None else max(1, min(longest, patience // 4))
    every = min(math.ceil(min(evaluated, ENOUGH) / max(affordable, 1.0)), most)
    # Where every round counts, as in runs that try a few settings, ranking enough users is worth its time.
    least = LEAST if longest > 1 else ENOUGH
    return Schedule(min(evaluated, max(least, int(affordable * every))), every)


class Selection:
    """The rankings against all items that pick a run's round."""

    def __init__(
        self, evaluator: Evaluator, seed: int, samples: float, rounds: int, width: int = 1, patience: int | None = None
    ) -> None:
        """Of a run with so many samples to learn from in a round; with 0 `rounds` nothing is ranked. Scoring holds
        `width` values for each (user, item) pair. With `patience` the run ends after so many rounds without a better
        one."""
        self.evaluator, self.seed, self.samples, self.rounds, self.width = evaluator, seed, samples, rounds, width
        self.patience = patience

    @cached_property
    def schedule(self) -> Schedule:
        """Who is ranked, and when."""
        evaluator = self.evaluator
        n_items = evaluator.split.data.n_items
        return schedule(self.samples, len(evaluator.users), n_items, self.rounds, self.patience)

    @cached_property
    def sample(self) -> Sample:
        """Who is ranked."""
        return Sample(self.evaluator, self.schedule.users, self.seed, self.width)

    def rankings(self, round_: int) -> list[SampleRanks]:
        """The ranking of a round; nothing where none is due."""
        return [SampleRanks(self.sample)] if self.due(round_) else []

    def due(self, round_: int) -> bool:
        """Whether a round is ranked. The first rounds change a model most, and some diverge after them: rounds 1, 4,
        16, ... are ranked too, and the last one."""
        if not self.rounds:
            return False
        early = round_ & (round_ - 1) == 0 and round_.bit_length() % 2 == 1
        return early or round_ % self.schedule.every == 0 or round_ == self.rounds


def chosen(split: Split, users: NDArray[np.int64], seed: int, count: int) -> NDArray[np.int64]:
    """At most `count` of these users, drawn at random once per run."""
    key = streams.bits(streams.keys(seed, streams.ONCE, split.number(users)), streams.VALIDATION)
    found: NDArray[np.int64] = users[np.sort(np.argsort(key, kind="stable")[:count])]
    return found


class Sample:
    """A fixed random sample of the evaluated users, whose validation items are ranked among all items."""

    def __init__(self, evaluator: Evaluator, count: int, seed: int, width: int = 1) -> None:
        """Of at most `count` users; scoring holds `width` values for each (user, item) pair."""
        self.evaluator, self.split, self.width = evaluator, evaluator.split, width
        evaluated, device = evaluator.users[evaluator.parts[0].rows.to(evaluator.users.device)], evaluator.users.device
        codes = evaluated.cpu().numpy()
        users = chosen(self.split, codes, seed, count)
        self.users = torch.from_numpy(users).to(device)
        self.part = Part.of(self.split.valid, self.split, users, device)
        """Validation items of the sample's users."""
        self.row = torch.full((self.split.data.n_users,), -1, device=device)
        """[n_users] the place of a user in the sample; -1 for all others."""
        self.row[self.users] = torch.arange(len(users), device=device)
        self.whole = self.row >= 0
        """[n_users] who is in the sample."""


class SampleRanks:
    """Ranks of the validation items of a sample of users among all items outside their training items."""

    def __init__(self, of: Sample) -> None:
        self.of = of
        self.valid = torch.zeros(len(of.part.owner), dtype=torch.int64, device=of.users.device)
        """The rank of each validation item, in the order of the sample's pairs."""
        self._seen = torch.zeros(len(of.users), dtype=torch.bool, device=of.users.device)

    @property
    def whole(self) -> Tensor:
        """[n_users]: who is ranked against all items."""
        return self.of.whole

    def add(self, users: Tensor, score: Score) -> None:
        """Rank for the users of the sample among these."""
        of, rows = self.of, self.of.row[users]
        if not len(users) or not bool((rows >= 0).any()):
            return
        scores = score_all(users, score, of.split.data.n_items, of.width)
        if not bool((rows >= 0).all()):
            users, rows, scores = users[rows >= 0], rows[rows >= 0], scores[rows >= 0]
        pairs, row = of.part.pairs(rows)
        self.valid[pairs] = of.evaluator.rank_held_out(scores, users, (row, of.part.items[pairs]))
        self._seen[rows] = True

    def missing(self) -> Tensor:
        """Users of the sample that are not ranked yet."""
        return self.of.users[~self._seen]

    def tensors(self) -> dict[str, Tensor]:
        """Ranks so far, 0 for users that are not ranked yet."""
        return {"ranks": self.valid}

    def complete(self, tensors: dict[str, Tensor]) -> None:
        """Set the ranks of all users."""
        self.valid = tensors["ranks"]
        self._seen.fill_(True)

    def metrics(self) -> tuple[Report, Report]:
        """The metrics of validation, and nothing of test."""
        return {"full": self.of.part.metrics(self.valid.cpu())}, {}
