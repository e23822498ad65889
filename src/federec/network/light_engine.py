"""A node's learning in NumPy, one user after the other: methods with a linear or an additive score, without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from federec.data.split import Split
from federec.evaluation.candidates import Drawn, drawn
from federec.evaluation.metrics import rank_metrics
from federec.evaluation.selection import chosen, schedule
from federec.light.device import Learned, Light
from federec.light.start import Floats
from federec.light.state import LightState
from federec.methods.base import LOSS
from federec.network.engines import Sums, Task
from federec.network.parameters import Payload


class LightEngine:
    """See `engines.Engine`."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.light = Light(task.method, task.split, task.config.seed, task.close_held_out)

    @property
    def users(self) -> NDArray[np.int64]:
        users: NDArray[np.int64] = np.flatnonzero(np.diff(self.task.split.ptr))
        return users

    @cached_property
    def candidates(self) -> Drawn:
        return drawn(self.task.split, self.task.config.seed)

    @cached_property
    def shared(self) -> dict[str, Floats]:
        return self.task.shared.shared(self.task.n_items)

    def needed(self, round_: int) -> NDArray[np.int64]:
        needed = np.zeros(self.task.n_items, bool)
        for ranked in (self.candidates.valid, self.candidates.test):
            needed[ranked[ranked >= 0]] = True
        for user in self.users:
            needed[self.light.samples(int(user), round_).items] = True
        return np.flatnonzero(needed)

    def start(self) -> LightState:
        users = len(self.task.split.ptr) - 1
        return LightState.start(self.task.method, self.task.sizes, users, self.task.config.seed)

    def train(self, state: LightState, round_: int) -> tuple[Sums, Payload]:
        total = {name: np.zeros_like(self.shared[name]) for name in self.task.method.sends()}
        touched, losses = np.zeros(self.task.n_items, bool), list[float]()
        ranks = self.ranks(full=False)
        for user, learned in self.played(state, round_):
            for name, change in learned.sent.items():
                total[name][learned.ids] += change
            touched[learned.ids] = True
            losses += learned.losses
            if self.task.method.view == "own":
                ranks.add(user, self.light.scores(user, self.shared, state, learned))
        if self.task.hidden or "dense" in self.task.channel:
            touched[:] = True
        ids = np.flatnonzero(touched) if total else np.zeros(0, np.int64)
        sums = {LOSS: (float(np.float32(sum(losses))), len(losses))} if losses else {}
        return sums | ranks.sums(), Payload(ids, {name: table[ids] for name, table in total.items()})

    def played(self, state: LightState, round_: int) -> Iterator[tuple[int, Learned]]:
        """Each user who can learn, after the round."""
        for user in self.users.tolist():
            yield user, self.light.learn(user, round_, self.shared, state)

    def evaluate(self, state: LightState, round_: int, full: bool) -> Sums:
        ranks = self.ranks(full)
        if self.task.method.view == "own":
            for user, learned in self.played(state, round_):
                ranks.add(user, self.light.scores(user, self.shared, state, learned))
        else:
            for user in self.candidates.users.tolist():
                ranks.add(user, self.scores(user, state))
        return ranks.sums()

    def ranks(self, full: bool) -> Ranks:
        """The rankings of a round: against the candidates and, where all rows came, for some users against all items;
        or those of a full evaluation."""
        split, everybody = self.task.split, self.candidates.users
        sampled = not (full and self.task.hidden)  # then told in the round already
        if full:
            return Ranks(split, self.candidates, sampled, set(everybody.tolist()), True)
        config, samples = self.task.config, sum(map(self.light.length, self.users.tolist()))
        count = schedule(samples, len(everybody), self.task.n_items, config.rounds or 1).users if self.task.whole else 0
        return Ranks(split, self.candidates, sampled, set(chosen(split, everybody, config.seed, count).tolist()), False)

    def scores(self, user: int, state: LightState) -> NDArray[np.float32]:
        return self.light.scores(user, self.shared, state)

    def tuned(self, user: int, state: LightState, round_: int) -> NDArray[np.float32]:
        learned = self.light.learn(user, round_, self.shared, state)
        return self.light.scores(user, self.shared, state, learned)


@dataclass
class Ranks:
    """The ranks of users' held-out items. A tie counts against the held-out item, and so does what is no number."""

    split: Split
    candidates: Drawn
    sampled: bool
    """Whether users rank against the candidates."""
    whole: set[int]
    """Who ranks against all items."""
    tests: bool
    """Whether test items, too, rank against all items."""
    found: dict[str, list[int]] = field(default_factory=dict)

    def add(self, user: int, scores: Floats) -> None:
        """Rank for a user, by the scores of all items; who has nothing held out is ignored."""
        place = int(np.searchsorted(self.candidates.users, user))
        if self.candidates.users[place : place + 1].tolist() != [user]:
            return
        valid, test = self.candidates.valid[place], self.candidates.test[place]
        if self.sampled:
            self._keep("valid sampled", _place(scores, valid))
            self._keep("test sampled", _place(scores, test))
        if user in self.whole:
            known = self.split.train[self.split.ptr[user] : self.split.ptr[user + 1]]
            self._keep("valid full", _rank(scores, valid[0], known))
            if self.tests:
                self._keep("test full", _rank(scores, test[0], np.append(known, valid[0])))

    def _keep(self, name: str, rank: int) -> None:
        self.found.setdefault(name, []).append(rank)

    def sums(self) -> Sums:
        """Sums of the metrics over the users that were ranked, and how many these are: `valid sampled hr@10`, ..."""
        sums: Sums = {}
        for kind, ranks in self.found.items():
            metrics = rank_metrics(np.array(ranks))
            sums |= {f"{kind} {name}": (value * len(ranks), len(ranks)) for name, value in metrics.items()}
        return sums


def _place(scores: Floats, items: NDArray[np.int32]) -> int:
    """How many of the other candidates do not score below the first; -1 is none."""
    others = items[1:][items[1:] >= 0]
    return len(others) - int((scores[others] < scores[items[0]]).sum())


def _rank(scores: Floats, item: int, out: NDArray[np.int32]) -> int:
    """How many other items do not score below an item; those in `out` come last."""
    ranked = scores.copy()
    ranked[out] = -np.inf
    ranked[item] = scores[item]
    return len(ranked) - 1 - int((ranked < scores[item]).sum())
