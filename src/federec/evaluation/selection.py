"""Which round is best is decided on validation. Ranking all items for everybody in every round would take longer than
learning does, so a fixed random sample of users is ranked, in as many rounds as that takes at most 15 % of their time.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from federec import streams
from federec.evaluation.evaluator import Evaluator, Report, Score, score_all
from federec.evaluation.metrics import rank_metrics

LEAST = 250
"""Users below which the metrics of a sample say little."""

_RANKED = 20
"""Rounds of a run that are ranked at least."""


class Schedule(NamedTuple):
    """Who is ranked against all items during training, and when."""

    users: int
    every: int
    """Rounds from one ranking to the next."""


def schedule(samples: float, evaluated: int, n_items: int, rounds: int) -> Schedule:
    """The schedule of a run with so many samples to learn from in a round. It depends on counts only, so that every
    machine and engine chooses the same round.

    To learn from a sample takes as long as to score some items, and each evaluated user scores 200 of them in a round
    anyway. The factors are the smallest that were measured over methods and engines (`benchmarks/selection.py`).
    """
    affordable = (0.35 * samples + 0.1 * 200 * evaluated) / n_items
    if affordable >= evaluated:
        return Schedule(evaluated, 1)
    users = min(evaluated, max(LEAST, int(affordable)))
    every = min(math.ceil(users / max(affordable, 1.0)), max(1, rounds // _RANKED))
    return Schedule(users, every)


class Selection:
    """The rankings against all items that pick a run's round."""

    def __init__(self, evaluator: Evaluator, seed: int, samples: float, rounds: int, width: int = 1) -> None:
        """Of a run with so many samples to learn from in a round; with 0 `rounds` nothing is ranked. Scoring holds
        `width` values for each (user, item) pair."""
        self.evaluator, self.seed, self.samples, self.rounds, self.width = evaluator, seed, samples, rounds, width

    @cached_property
    def schedule(self) -> Schedule:
        """Who is ranked, and when."""
        evaluator = self.evaluator
        return schedule(self.samples, len(evaluator.users), evaluator.split.data.n_items, self.rounds)

    @cached_property
    def sample(self) -> Sample:
        """Who is ranked."""
        return Sample(self.evaluator, self.schedule.users, self.seed, self.width)

    def rankings(self, round_: int) -> list[SampleRanks]:
        """The ranking of a round; nothing where none is due."""
        due = self.rounds and (round_ % self.schedule.every == 0 or round_ == self.rounds)
        return [SampleRanks(self.sample)] if due else []


class Sample:
    """A fixed random sample of the evaluated users, whose validation items are ranked among all items."""

    def __init__(self, evaluator: Evaluator, count: int, seed: int, width: int = 1) -> None:
        """Of at most `count` users; scoring holds `width` values for each (user, item) pair."""
        split, device = evaluator.split, evaluator.users.device
        evaluated = evaluator.users.cpu().numpy()
        key = streams.bits(streams.keys(seed, streams.ONCE, split.number(evaluated)), streams.VALIDATION)
        users = evaluated[np.sort(np.argsort(key, kind="stable")[:count])]
        self.n_items, self.width = split.data.n_items, width
        self.users = torch.from_numpy(users).to(device)
        self.held = torch.from_numpy(split.valid[users]).long().to(device)
        self.row = torch.full((split.data.n_users,), -1, device=device)
        """[n_users] the place of a user in the sample; -1 for all others."""
        self.row[self.users] = torch.arange(len(users), device=device)
        counts = torch.from_numpy(split.ptr[users + 1] - split.ptr[users]).to(device)
        parts = [split.train[split.ptr[user] : split.ptr[user + 1]] for user in users]
        self.counts, self.train = counts, torch.from_numpy(np.concatenate([*parts, parts[0][:0]])).long().to(device)
        """Training items of the sample's users, and how many each has."""

    def known(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Position among `rows`, and item, of the training items of these places of the sample."""
        counts = self.counts[rows]
        position = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), counts)
        first = self.counts.cumsum(0)[rows] - counts - (counts.cumsum(0) - counts)
        return position, self.train[torch.arange(len(position), device=rows.device) + first[position]]


class SampleRanks:
    """Ranks of the validation items of a sample of users among all items outside their training items."""

    def __init__(self, of: Sample) -> None:
        self.of = of
        self.valid = torch.zeros(len(of.users), dtype=torch.int64, device=of.users.device)
        """Each user's rank of the validation item."""
        self._seen = torch.zeros_like(self.valid, dtype=torch.bool)

    @property
    def whole(self) -> Tensor:
        """[n_users]: who is ranked against all items."""
        return self.of.row >= 0

    def add(self, users: Tensor, score: Score) -> None:
        """Rank for these users of the sample, item block by item block."""
        if not len(users):
            return
        of, rows = self.of, self.of.row[users]
        scores = score_all(users, score, of.n_items, of.width)
        own = scores.gather(1, of.held[rows, None])
        position, item = of.known(rows)
        known = torch.bincount(position, (scores[position, item] < own[position, 0]).double(), len(rows)).long()
        beaten = (scores < own).sum(1) - known
        self.valid[rows] = of.n_items - of.counts[rows] - beaten - 1  # what is not a number counts as better
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
        return {"full": rank_metrics(self.valid.cpu())}, {}
