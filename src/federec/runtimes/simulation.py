"""What a run loop drives: play a round and say how it went, and look closely at the best one.

A method that ranks with rows tuned in the round ("own" view) loses them when the round ends. Nothing is kept:
randomness is a pure function of (seed, round, user, draw), so the best round is simply played again from the
state it began with - for the final evaluation, and on a device that is asked to recommend.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from federec.cohort.cohort import Cohort
from federec.cohort.draw import Devices
from federec.cohort.layers import Params
from federec.data.split import Split
from federec.errors import UserError
from federec.evaluation.evaluator import Evaluator, Full, Sampled
from federec.evaluation.metrics import Metrics
from federec.evaluation.protocols import Protocol as EvaluationProtocol
from federec.evaluation.protocols import protocol
from federec.federation.engine import Playing, fits, fused_round, fused_scores, neighbours, warm_up
from federec.federation.round import RoundReport, Sum, play, select
from federec.federation.scoring import Neighbour, score_global, score_own
from federec.federation.state import State
from federec.methods.base import DeviceMethod, Method
from federec.methods.central import CentralMethod
from federec.runs.config import RunConfig
from federec.runs.group import ALONE, Group
from federec.runs.loop import Played, Review, Trainer


class _AtATime(NamedTuple):
    """Users who are scored at a time. A CPU wants little memory, a GPU few launches."""

    full: int
    """On all items."""
    few: int
    """On a few items each."""
    few_by_kernel: int


_ON_CPU, _ON_GPU = _AtATime(32, 256, 1 << 11), _AtATime(256, 1 << 12, 1 << 14)
_POOLED = 256  # the same of a centralised method

_LONG = 2.5e6
"""Interactions times passes from which kernels pay."""

Engine = Literal["auto", "torch", "fused"]
"""What plays rounds: stacked cohorts in torch, or a fused kernel where a method has one."""


def trainer(
    method: Method,
    split: Split,
    protocol: EvaluationProtocol,
    seed: int,
    participation: float = 1.0,
    place: str = "cpu",
    engine: Engine = "torch",
    evaluate_users: int | None = None,
    group: Group = ALONE,
) -> Trainer:
    """The trainer for a kind of method. `evaluate_users`: evaluate so many at most, drawn at random."""
    fits_kernel = isinstance(method, DeviceMethod) and fits(method.fused_form(split.data.n_items), place)
    if engine == "fused" and not fits_kernel:
        raise UserError(f"'{method.name}' as it is set has no fused engine on {place}; leave out --engine fused")
    if isinstance(method, DeviceMethod):
        fused = engine != "torch" and fits_kernel
        return DeviceTrainer(method, split, protocol, seed, participation, place, fused, evaluate_users, group)
    if group.size > 1:
        raise UserError(f"'{method.name}' is trained in one place, on pooled data; run it without torchrun")
    assert isinstance(method, CentralMethod)
    return CentralTrainer(method, split, protocol, seed, place, evaluate_users)


def make_trainer(config: RunConfig, method: Method, split: Split, place: str, group: Group = ALONE) -> Trainer:
    """The trainer of the method that a configuration asks for."""
    rules = protocol(config.protocol)
    share = config.participation or method.default_participation
    # Compiling a kernel takes some ten seconds, once: a short run is over before that.
    passes = method.epochs if isinstance(method, DeviceMethod) else 1
    short = len(split.train) * (config.rounds or 1) * share * passes < _LONG
    engine = "torch" if config.engine == "auto" and short else config.engine
    return trainer(method, split, rules, config.seed, share, place, engine, config.evaluate_users, group)


def _review(sampled: Sampled, full: Full, views: dict[str, Metrics]) -> Review:
    valid, test = (a | b for a, b in zip(sampled.metrics(), full.metrics(), strict=True))
    ranks = {
        "valid sampled": sampled.valid,
        "test sampled": sampled.test,
        "valid full": full.valid,
        "test full": full.test,
    }
    return Review(valid, test, views, {name: values.int().cpu() for name, values in ranks.items()})


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Torch's other threads would spin for some milliseconds after each operation, on cores that kernels use."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _unasked(playing: Playing, users: Tensor) -> None:
    """These users learn, and score nothing."""
    playing.play(users, users.new_zeros(len(users), 0))


def _ignore(cohort: Cohort) -> None:
    """Nothing to see in this cohort."""


class DeviceTrainer:
    """Trains on devices, simulated in this process and the others of its group."""

    def __init__(
        self,
        method: DeviceMethod,
        split: Split,
        protocol: EvaluationProtocol,
        seed: int,
        participation: float,
        place: str,
        fused: bool,
        evaluate_users: int | None,
        group: Group = ALONE,
    ) -> None:
        self.fused, self.group = fused, group
        self.method, self.seed, self.participation = method, seed, participation
        self.devices = Devices.of(split, protocol.close_held_out, place)
        method.check(self.devices)
        group.deal(self.devices.lengths(torch.arange(len(self.devices), device=place), method.negatives))
        self.evaluator = Evaluator(split, seed, place, evaluate_users)
        self.state = State.start(method, split.data.n_items, len(self.devices), seed, place)
        self.place = place
        self.at_a_time = _ON_CPU if place == "cpu" else _ON_GPU
        self.warm = not fused

    def play(self, round_: int) -> Played:
        compiling = self._warm_up()
        began = time.perf_counter()
        before = self.state.copy() if self.method.view == "own" else None
        ranks, chosen = self.evaluator.sampled(), self._select(round_)
        early = self.method.view == "own" and len(chosen) == len(self.devices)  # all rank before the server's sum
        playing = self._fused if self.fused else self._stacked
        report, evaluating = playing(ranks, self.group.mine(chosen), round_, self._adding(chosen, *[ranks] * early))
        now = time.perf_counter()
        self._rank_global(ranks, self.state)
        if not early:
            self._sum([], [ranks])
        valid, test = ranks.metrics()
        end = time.perf_counter()
        evaluating += end - now
        seconds = {"train": end - began - evaluating, "evaluate": evaluating} | compiling
        model = self.state if before is None else before
        return Played(model, valid, test, report.loss, report.up_bytes, report.down_bytes, seconds, report.notes)

    def _warm_up(self) -> dict[str, float]:
        """Before the first round of a fused engine: `compile`, the seconds until its kernels were there."""
        if self.warm:
            return {}
        began = time.perf_counter()
        warm_up(self.method, self.state, self.devices)
        self.warm = True
        return {"compile": time.perf_counter() - began}

    def _sum(self, values: list[Params], ranks: Sequence[Sampled | Full], idle: bool = False) -> list[Params]:
        """Over all processes; the rankings, of which each has its own users', are completed on the way."""
        sums = self.group.sum([*values, *(ranking.tensors() for ranking in ranks)], idle)
        for ranking, whole in zip(ranks, sums[len(values) :], strict=True):
            ranking.complete(whole)
        return sums[: len(values)]

    def _adding(self, chosen: Tensor, *ranks: Sampled) -> Sum:
        """How a round of the chosen is added up; these rankings go along."""
        return partial(self._sum, ranks=ranks, idle=self.group.idle(chosen))

    def _stacked(self, ranks: Sampled, users: Tensor, round_: int, sum_: Sum) -> tuple[RoundReport, float]:
        """Play a round in stacked cohorts; who ranks with rows tuned in it is ranked on the way, in so many seconds."""
        evaluating = 0.0

        def observe(cohort: Cohort) -> None:
            nonlocal evaluating
            now = time.perf_counter()
            ranks.add(cohort.users, partial(score_own, self.method, cohort, self.state))
            evaluating += time.perf_counter() - now

        watch = observe if self.method.view == "own" else _ignore
        return play(self.method, self.state, self.devices, users, self.seed, round_, watch, sum_=sum_), evaluating

    def _fused(self, ranks: Sampled, users: Tensor, round_: int, sum_: Sum) -> tuple[RoundReport, float]:
        """The same in one pass of a kernel, which scores as it goes."""
        playing = fused_round(self.method, self.state, self.devices, self.seed, round_)
        ranked = self._evaluated(users) & (self.method.view == "own")
        asked, others = users[ranked], users[~ranked]
        with _one_torch_thread():
            for some in asked.split(self.at_a_time.few_by_kernel):
                ranks.add(some, partial(playing.play, some))
            if len(others) or not len(asked):  # somebody must have been called, if nobody is there
                _unasked(playing, others)
        return playing.finish(sum_), 0.0

    def _evaluated(self, users: Tensor) -> Tensor:
        """Whose ranks count."""
        return self.evaluator.row[users] >= 0

    def _rank_global(self, ranks: Sampled, state: State) -> None:
        """Rank with the server's rows whoever is not ranked yet."""
        size = self.at_a_time.few_by_kernel if self.fused else self.at_a_time.few
        for users in self.group.mine(ranks.missing()).split(size):
            ranks.add(users, partial(self._score, state, users))

    def _score(self, state: State, users: Tensor, items: Tensor) -> Tensor:
        """Scores with the server's rows."""
        if self.fused:
            return fused_scores(self.method, state, self.devices, users, items)
        return score_global(self.method, state, users, items, self.devices)

    def _select(self, round_: int) -> Tensor:
        return select(len(self.devices), self.participation, self.seed, round_).to(self.place)

    def review(self, model: State, round_: int) -> Review:
        method = self.method
        state = model.copy() if method.view == "own" else model  # played on, or only looked at
        width = sum(p.shape[0] for p in {**method.shared(), **method.private()}.values() if p.rows)
        sampled, full = self.evaluator.sampled(), self.evaluator.full(max(1, width))
        views = {"own": sampled}
        if method.view == "own":
            views |= {"global": self.evaluator.sampled(), "random": self.evaluator.sampled()}
            (self._review_fused if self.fused else self._review_stacked)(state, round_, sampled, full, views["random"])
        for users in self.group.mine(sampled.missing()).split(self.at_a_time.full):
            full.add(users, partial(self._score, state, users))
        for ranks in views.values():
            self._rank_global(ranks, state)
        self._sum([], [full, *views.values()])
        compared = {name: ranks.metrics()[1]["sampled"] for name, ranks in views.items()}
        return _review(sampled, full, compared if method.view == "own" else {})

    def _review_stacked(self, state: State, round_: int, sampled: Sampled, full: Full, random: Sampled) -> None:
        """Play the round again; rank, with the rows tuned in it, each device with its own and with its neighbour's."""
        neighbour = Neighbour()

        def observe(cohort: Cohort) -> None:
            for ranks in (sampled, full):
                ranks.add(cohort.users, partial(score_own, self.method, cohort, state))
            random.add(cohort.users, partial(neighbour.score, self.method, cohort, state))

        chosen = self._select(round_)
        mine, sum_ = self.group.mine(chosen), self._adding(chosen)
        play(self.method, state, self.devices, mine, self.seed, round_, observe, sum_=sum_)

    def _review_fused(self, state: State, round_: int, sampled: Sampled, full: Full, random: Sampled) -> None:
        """The same by a kernel. It plays the round twice: only when everybody has learned is it known by what weights a
        device's rows are to be judged for its neighbour."""
        before, chosen = state.copy(), self._select(round_)
        playing = fused_round(self.method, state, self.devices, self.seed, round_)
        users = self.group.mine(chosen)
        items, ranked = torch.arange(self.devices.n_items, device=self.place), self._evaluated(users)
        for some in users[ranked].split(self.at_a_time.full):
            scores = playing.play(some, items.expand(len(some), -1))
            for ranks in (sampled, full):
                ranks.add(some, partial(scores.gather, 1))
        _unasked(playing, users[~ranked])
        playing.finish(self._adding(chosen))
        again = before, state, self.devices, users[ranked], self.seed, round_
        for some, score in neighbours(self.method, *again, self.at_a_time.few_by_kernel):
            random.add(some, score)

    def scores(self, model: State, round_: int, user: int) -> Tensor:
        users = torch.tensor([user], device=self.place)
        items = torch.arange(self.devices.n_items, device=self.place)[None]
        scored: list[Tensor] = []
        if self.method.view == "own":
            state = model.copy()

            def observe(cohort: Cohort) -> None:
                scored.append(score_own(self.method, cohort, state, items))

            play(self.method, state, self.devices, users, self.seed, round_, observe)
        else:
            scored.append(self._score(model, users, items))
        return scored[0][0]


class CentralTrainer:
    """Fits a centralised reference in this process."""

    def __init__(
        self,
        method: CentralMethod,
        split: Split,
        protocol: EvaluationProtocol,
        seed: int,
        place: str,
        evaluate_users: int | None,
    ) -> None:
        self.method, self.split, self.seed, self.place = method, split, seed, torch.device(place)
        self.devices = Devices.of(split, protocol.close_held_out, place)
        self.evaluator = Evaluator(split, seed, place, evaluate_users)
        self.state = State({name: value.to(place) for name, value in method.start(split, seed).items()})

    def play(self, round_: int) -> Played:
        began = time.perf_counter()
        with self.place:
            model = self.method.learn(self.state.shared, self.split, self.devices, self.seed, round_)
        # As a checkpoint stores it.
        self.state = State({name: value.to(self.place).contiguous() for name, value in model.items()})
        now = time.perf_counter()
        ranks = self.evaluator.sampled()
        for users in ranks.missing().split(_POOLED):
            scores = self._scores(self.state, users)
            ranks.add(users, partial(scores.gather, 1))
        valid, test = ranks.metrics()
        seconds = {"train": now - began, "evaluate": time.perf_counter() - now}
        return Played(self.state, valid, test, seconds=seconds)

    def review(self, model: State, round_: int) -> Review:
        sampled, full = self.evaluator.sampled(), self.evaluator.full()
        for users in sampled.missing().split(_POOLED):
            scores = self._scores(model, users)
            for ranks in (sampled, full):
                ranks.add(users, partial(scores.gather, 1))
        return _review(sampled, full, {})

    def scores(self, model: State, round_: int, user: int) -> Tensor:
        return self._scores(model, torch.tensor([user], device=self.place))[0]

    def _scores(self, model: State, users: Tensor) -> Tensor:
        with self.place:
            return self.method.scores(model.shared, self.split, users)
