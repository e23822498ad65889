"""Trainers: they play a round and say how it went, and evaluate the best one in full.

A method that ranks with rows tuned in the round ("own" view) loses them when the round ends. They are not stored:
randomness is a pure function of (seed, round, user, draw), so the best round is played again from the state it began
with, for the final evaluation and on a device that is asked to recommend.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from federec.attackers.base import Attack
from federec.attackers.crew import Crew
from federec.cohort.cohort import Cohort
from federec.cohort.draw import Devices
from federec.cohort.layers import Params
from federec.cohort.update import Update
from federec.data.split import Split
from federec.errors import UserError
from federec.evaluation.counts import report_counts
from federec.evaluation.evaluator import Evaluator, Full, Report, Sampled
from federec.evaluation.exposure import exposure
from federec.evaluation.metrics import Metrics, metric_of
from federec.evaluation.protocols import Protocol as EvaluationProtocol
from federec.evaluation.protocols import protocol
from federec.evaluation.selection import SampleRanks, Selection
from federec.federation.channel import Channel, Link
from federec.federation.device import learn
from federec.federation.engine import why_not
from federec.federation.fused_base import first_ranks, held_out_ranks
from federec.federation.fused_windows import KernelNetwork, compile_network
from federec.federation.round import select
from federec.federation.scoring import rank_own, score_global
from federec.federation.server import Sum
from federec.federation.state import State
from federec.federation.threads import all_torch_threads, one_torch_thread
from federec.kernels.compiling import loads
from federec.mathematics.windows import using
from federec.methods.base import DeviceMethod, Method
from federec.methods.central import CentralMethod
from federec.methods.forms import DecayedPairs, NeuralScore, NextItem, SummedMessages
from federec.methods.pooled import PooledMethod
from federec.runs.config import RunConfig
from federec.runs.group import ALONE, Group
from federec.runs.loop import EngineChoice, Played, Review, Trainer
from federec.runtimes.engines import Engine, Fused, Stacked, some_at_a_time, wait_for

_POOLED = 256
"""Users whom a centralised method scores at a time."""

_LONG = 2.5e6
"""Interactions times passes, or pairs of a device's items, from which kernels pay: compiling one takes about ten
seconds, once."""

_LOADABLE = _LONG / 10
"""The same for kernels that are compiled already: loading them takes up to a second."""

_DRAWN = 32
"""Values with noise that cost torch about as much as the passes over one interaction, as far as compiling goes: the
kernel that adds noise up is compiled in a second."""

_TRANSFORMED = 5
"""A transformer's pass over an interaction takes as long as so many passes of other methods."""

_SHORT = EngineChoice("torch", "the run is too short to repay compiling a kernel")
_COMPILED = EngineChoice("fused", "the kernel was compiled before")

EngineName = Literal["auto", "torch", "fused"]
"""The engine that a run asks for: stacked cohorts in torch, a fused kernel where the method has one, or the faster."""


def trainer(
    method: Method,
    split: Split,
    protocol: EvaluationProtocol,
    seed: int,
    participation: float = 1.0,
    device: str = "cpu",
    engine: EngineName = "torch",
    evaluate_users: int | None = None,
    group: Group = ALONE,
    rounds: int | None = None,
    link: Link | None = None,
    select: str | None = None,
    patience: int | None = None,
    fresh_steps: int = 0,
    played_by: str | None = None,
    brief: bool = False,
) -> Trainer:
    """The trainer for a method. `evaluate_users`: evaluate at most this many users, drawn at random. `rounds`: the
    length of the run, if it is known; a short one does not repay compiling a kernel. `link`: what lies between devices
    and server, if not the method's own. `select`: the metric that picks the round, if not the protocol's own.
    `patience`: after how many rounds without a better one the run ends. `fresh_steps`: local rounds on the fresh
    history before test items are ranked once more. `played_by`: the engine of the run's earlier rounds. `brief`: of
    each round only what picks the best one is measured."""
    if isinstance(method, DeviceMethod):
        link = link or Link.of(method)
    choice = _engine(method, split, participation, device, engine, rounds, link, played_by)
    full, _ = metric_of(select or protocol.select)
    ranked = (rounds or 1) if full == "full" else 0
    if isinstance(method, DeviceMethod):
        assert link is not None
        if group.size > 1 and (link.aggregator.gathers or link.attack):
            what = f"attack '{link.attack.name}'" if link.attack else f"aggregator '{link.aggregator.name}'"
            raise UserError(f"{what} needs all devices in one process; run it without torchrun")
        evaluated = evaluate_users, link, ranked, patience, fresh_steps, played_by
        return DeviceTrainer(method, split, protocol, seed, participation, device, choice, *evaluated, group, brief)
    if fresh_steps:
        raise UserError(f"'{method.name}' is trained in one place; only devices can take --fresh-steps")
    if group.size > 1:
        raise UserError(f"'{method.name}' is trained in one place, on pooled data; run it without torchrun")
    assert isinstance(method, CentralMethod)
    evaluated_ = evaluate_users, ranked, patience, played_by
    return CentralTrainer(method, split, protocol, seed, device, choice, *evaluated_, brief)


def make_trainer(
    config: RunConfig,
    method: Method,
    split: Split,
    device: str,
    group: Group = ALONE,
    played_by: str | None = None,
    brief: bool = False,
) -> Trainer:
    """The trainer that a configuration asks for; `method` is the one that it describes. `played_by`: the engine of the
    rounds that the run has, which plays the others too. `brief`: of each round only what picks the best one is
    measured."""
    fraction = config.participation or method.default_participation
    rules, asked = protocol(config.protocol), config.engine
    link = config.link(method) if isinstance(method, DeviceMethod) else None
    return trainer(
        method,
        split,
        rules,
        config.seed,
        fraction,
        device,
        asked,
        evaluate_users=config.evaluate_users,
        group=group,
        rounds=config.rounds or 1,
        link=link,
        select=config.select,
        patience=config.patience,
        fresh_steps=config.fresh_steps,
        played_by=played_by,
        brief=brief,
    )


def _engine(
    method: Method,
    split: Split,
    participation: float,
    device: str,
    asked: EngineName,
    rounds: int | None,
    link: Link | None,
    played_by: str | None,
) -> EngineChoice:
    """The engine that plays a run's rounds, and why; `auto` where a kernel pays only if it is compiled already."""
    name = "+".join((method.name, *method.plugins))
    reason = why_not(method, split.data.n_items, device, link)
    if asked == "fused" and reason is not None:
        raise UserError(f"'{name}' cannot run on the fused engine: {reason}; leave the engine out, or take torch")
    if asked != "auto":
        return EngineChoice(asked, f"the run asks for engine '{asked}'")
    if reason is not None:
        return EngineChoice("torch", reason)
    form = method.fused_form(split.data.n_items)
    epochs = method.epochs if isinstance(method, DeviceMethod) else 1
    samples = len(split.train) * (rounds or 1) * epochs
    work = float(_pairs(split) if isinstance(form, DecayedPairs) else samples)
    if isinstance(form, SummedMessages):
        work = len(split.ptr) * form.values / _DRAWN
    if isinstance(form, NextItem):
        work *= _TRANSFORMED
    if isinstance(form, NeuralScore):
        # Compiling takes four times as long, and most of a round is the ranking of all users, whoever takes part.
        work /= 2
    else:
        work *= participation
    if rounds is not None and work < _LONG:
        return EngineChoice("auto", "undecided") if work >= _LOADABLE and played_by != "torch" else _SHORT
    if played_by == "torch":
        return EngineChoice("torch", "it played the run's earlier rounds")
    return EngineChoice("fused", f"'{name}' has a kernel")


def _pairs(split: Split) -> int:
    """Pairs of items on all devices: what a method with sums over pairs works on, once."""
    return int((np.diff(split.ptr) ** 2).sum())


def _rankings(evaluator: Evaluator, selection: Selection, round_: int, brief: bool) -> list[Sampled | SampleRanks]:
    """The rankings of a round: against candidates, unless it is `brief`, and, where it is due, against all items."""
    return [*([] if brief else [evaluator.sampled()]), *selection.rankings(round_)]


def _metrics(rankings: Sequence[Sampled | SampleRanks]) -> tuple[Report, Report]:
    """What a round's rankings say of validation and test."""
    valid, test = Report(), Report()
    for ranking in rankings:
        of_valid, of_test = ranking.metrics()
        valid, test = valid | of_valid, test | of_test
    return valid, test


Rankings = tuple[Sampled, Full]
"""Against 99 items, and against all."""


def _keep(update: Update, users: Tensor) -> None:
    """What devices do with an update that never leaves them."""


def _review(sampled: Sampled, full: Full, views: dict[str, Metrics], fresh: Rankings | None) -> Review:
    valid, test = (a | b for a, b in zip(sampled.metrics(), full.metrics(), strict=True))
    ranks = {
        "users": sampled.of.users,
        "valid sampled": sampled.valid,
        "test sampled": sampled.test,
        "valid full": full.valid,
        "test full": full.test,
    }
    for name, part in zip(("valid", "test"), sampled.of.parts, strict=True):
        if not part.one_each:
            ranks[f"{name} owner"] = part.owner
    ranks |= report_counts(full)
    renewed = Report()
    if fresh is not None:
        ranks |= {"fresh sampled": fresh[0].test, "fresh full": fresh[1].test}
        renewed = fresh[0].metrics()[1] | fresh[1].metrics()[1]
    return Review(valid, test, views, {name: values.int().cpu() for name, values in ranks.items()}, renewed)


class DeviceTrainer:
    """Trains on devices that are simulated in this process and the others of its group."""

    def __init__(
        self,
        method: DeviceMethod,
        split: Split,
        protocol: EvaluationProtocol,
        seed: int,
        participation: float,
        device: str,
        choice: EngineChoice,
        evaluate_users: int | None,
        link: Link,
        rounds: int,
        patience: int | None = None,
        fresh_steps: int = 0,
        played_by: str | None = None,
        group: Group = ALONE,
        brief: bool = False,
    ) -> None:
        """`rounds`: the length of a run whose rounds are ranked against all items; 0 where they are not. `brief`: then
        they are not ranked against candidates."""
        self.group, self.device = group, device
        self.method, self.seed, self.participation, self.fresh_steps = method, seed, participation, fresh_steps
        self.close_held_out = protocol.close_held_out
        self.devices = Devices.of(split, protocol.close_held_out, device)
        method.check(self.devices)
        lengths = self.devices.lengths(torch.arange(len(self.devices), device=device), method.negatives)
        group.deal(lengths)
        self.learners = self.devices.ptr.diff().nonzero().flatten()
        """Users who have something to learn from. The others are ranked with the server's rows."""
        self.evaluator = Evaluator(split, seed, device, evaluate_users)
        effort = participation * method.effort(lengths, split.data.n_items)
        self.brief = brief and rounds > 0
        self.state = State.start(method, split.data.n_items, len(self.devices), seed, device)
        self.poisson = link.channel.promise.noise == "central" and link.private and participation < 1
        """Whether devices take part independently of each other, which is what an account counts on."""
        if self.poisson:
            link = replace(link, divisor=max(1, round(participation * len(self.learners))))
        self.stacked = Stacked(method, self.devices, seed, link)
        fused = Fused(method, self.devices, seed, link, self.evaluator.row >= 0)
        if choice.used == "auto":
            ready = played_by == "fused" or fused.compiled(self.state)
            # Processes of a group may see unlike caches, and must not take unlike engines.
            choice = _COMPILED if ready and group.size == 1 else _SHORT
        self.engine_choice = choice
        self.engine: Engine = fused if choice.used == "fused" else self.stacked
        self.selection = Selection(self.evaluator, seed, effort, rounds, self.engine_width, patience)
        if choice.used == "fused" and torch.device(device).type == "cpu":
            self.evaluator.rank = first_ranks
            self.evaluator.rank_held_out = partial(held_out_ranks, self.devices)
        self.own = method.view == "own"
        """Whether devices rank with rows that they tune in the round."""

    def play(self, round_: int) -> Played:
        with self.engine.torch_threads():
            return self._play(round_)

    def _play(self, round_: int) -> Played:
        compiling = self.engine.warm_up(self.state)
        began = time.perf_counter()
        model = self.state.begun() if self.own else self.state
        rankings, chosen = _rankings(self.evaluator, self.selection, round_, self.brief), self.chosen(round_)
        own = rankings if self.own else []
        along = own if len(chosen) == len(self.devices) else []  # all users are ranked before the server's sum
        users, sum_ = self.group.mine(chosen), self._adding(chosen, along)
        report, evaluating = self.engine.play(self.state, users, round_, own, sum_)
        now = time.perf_counter()
        if not along:
            self._rank_once(rankings, self.state)
            for ranking in rankings:
                self._rank_global(ranking, self.state)
            self._sum([], rankings)
        valid, test = _metrics(rankings)
        end = time.perf_counter()
        evaluating += end - now
        seconds = {"train": end - began - evaluating, "evaluate": evaluating}
        if compiling:
            seconds["compile"] = compiling
        figures = report.loss, report.up_bytes, report.down_bytes, seconds, report.notes
        return Played(model, valid, test, *figures, engine=self.engine_choice.used)

    def review(self, model: State, round_: int) -> Review:
        sampled, full = self.evaluator.sampled(), self.evaluator.full(self.engine_width)
        views, state = {"own": sampled}, model
        if self.own:
            state = model.copy()  # the round is played again in it
            views |= {"global": self.evaluator.sampled(), "random": self.evaluator.sampled()}
            chosen = self.chosen(round_)
            users, sum_ = self.group.mine(chosen), self._adding(chosen, [])
            self.engine.play(state, users, round_, [sampled, full], sum_, views["random"])
        for users in self.group.mine(sampled.missing()).split(self.engine.full):
            full.add(users, partial(self.engine.score, state, users))
        for ranks in views.values():
            self._rank_global(ranks, state)
        self._sum([], [full, *views.values()])
        compared = {name: ranks.metrics()[1]["sampled"] for name, ranks in views.items()}
        review = _review(sampled, full, compared if self.own else {}, self._fresh(state, round_))
        attack = self.stacked.link.attack
        return review if attack is None else replace(review, attack=self._damage(full, attack))

    def _damage(self, full: Full, attack: Attack) -> dict[str, Any]:
        """What came of an attack: exposure of its targets, and full metrics of the honest users."""
        crew = Crew.of(attack, self.devices, self.seed)
        part, honest = full.of.parts[1], ~crew.member
        chosen = honest[full.of.users].cpu()[part.owner]
        metrics = part.metrics(full.test, chosen)
        return {
            "name": attack.name,
            "attackers": int(crew.member.sum()),
            "targets": [full.of.split.data.item_label(code) for code in crew.targets.tolist()],
            "exposure": exposure(full, honest, crew.targets),
            "cold_exposure": exposure(full, honest, crew.cold),
            "honest": {name: metrics[name] for name in ("hr@5", "hr@10", "ndcg@5", "ndcg@10")},
        }

    def _fresh(self, state: State, round_: int) -> Rankings | None:
        """Test items ranked with fresh histories, after the devices have learned from them alone for `fresh_steps`
        rounds: nothing is sent. None where neither changes anything."""
        if not (self.method.reads_history or self.fresh_steps):
            return None
        devices = Devices.of(self.evaluator.split.fresh, self.close_held_out, self.device)
        sampled, full = self.evaluator.sampled(), self.evaluator.full(self.width)
        users = self.group.mine(sampled.missing())
        state = state.copy() if self.fresh_steps else state
        learners = users[devices.ptr.diff()[users] > 0]
        for step in range(1, self.fresh_steps + 1):
            ranked = (sampled, full) if self.own and step == self.fresh_steps else ()
            rank = partial(self._rank_cohort, ranked, state)
            learn(self.method, state, devices, learners, self.seed, round_ + step, Channel(), _keep, rank)
        for some in self.group.mine(sampled.missing()).split(self.stacked.full):
            for ranks in (sampled, full):
                ranks.add(some, partial(score_global, self.method, state, some, devices=devices))
        self._sum([], [sampled, full])
        return sampled, full

    def _rank_cohort(self, rankings: Rankings | tuple[()], state: State, cohort: Cohort) -> None:
        """Rank a cohort with its own rows while they are alive."""
        for ranks in rankings:
            rank_own(ranks, self.method, cohort, state, self.stacked.full)

    def after(self, model: State, round_: int) -> State:
        """The state after a round that began with `model`: it is played again."""
        state, chosen = model.copy(), self.chosen(round_)
        self.engine.play(state, self.group.mine(chosen), round_, [], self._adding(chosen, []))
        return state

    @property
    def width(self) -> int:
        """Values that scoring in torch holds for each (user, item) pair."""
        # What a method makes of a history meets all items at once. In blocks it would be made anew for each of them.
        shared = {} if self.method.reads_history else self.method.shared()
        return max(1, sum(p.shape[0] for p in {**shared, **self.method.private()}.values() if p.rows))

    @property
    def engine_width(self) -> int:
        """The same of the engine's scoring: kernels hold only scores."""
        return 1 if self.engine.alone else self.width

    def chosen(self, round_: int) -> Tensor:
        """The users of a round."""
        if self.participation >= 1:
            return self.learners
        chosen = select(len(self.learners), self.participation, self.seed, round_, self.poisson)
        if len(chosen) == len(self.learners):  # the same tensor in every round: what is known of it is used again
            return self.learners
        return self.learners[chosen.to(self.device)]

    def _adding(self, chosen: Tensor, along: Sequence[Sampled | SampleRanks]) -> Sum:
        """How a round of the chosen users is added up over all processes; these rankings travel along."""
        return partial(self._sum, ranks=along, idle=self.group.idle(chosen))

    def _sum(
        self, values: list[Params], ranks: Sequence[Sampled | SampleRanks | Full], idle: bool = False
    ) -> list[Params]:
        """Sums over all processes. Each process has ranked its own users; the rankings are completed on the way."""
        if self.group.size == 1:
            return values
        sums = self.group.sum([*values, *(ranking.tensors() for ranking in ranks)], idle)
        for ranking, whole in zip(ranks, sums[len(values) :], strict=True):
            ranking.complete(whole)
        return sums[: len(values)]

    def _rank_once(self, rankings: Sequence[Sampled | SampleRanks], state: State) -> None:
        """Where histories are read, which takes longer than to score with what they give: users who are ranked against
        all items share these scores with the other rankings."""
        thorough = [ranking for ranking in rankings if ranking.whole is not None]
        if not (thorough and self.method.reads_history):
            return
        all_items = torch.arange(self.devices.n_items, device=self.device)
        with all_torch_threads():
            for users in self.group.mine(thorough[0].missing()).split(self.engine.full):
                scores = self.engine.score(state, users, all_items.expand(len(users), -1))
                for ranking in rankings:
                    ranking.add(users, partial(scores.gather, 1))

    def _rank_global(self, ranks: Sampled | SampleRanks, state: State) -> None:
        """Rank the users who are not ranked yet with the server's rows."""
        few = ranks.whole is None
        with nullcontext() if few or self.engine.alone else all_torch_threads():
            missing, size = self.group.mine(ranks.missing()), self.engine.few if few else self.engine.full
            for users in some_at_a_time(missing, size):
                ranks.add(users, partial(self.engine.score, state, users))


class CentralTrainer:
    """Trains a centralised reference in this process, on pooled data."""

    def __init__(
        self,
        method: CentralMethod,
        split: Split,
        protocol: EvaluationProtocol,
        seed: int,
        device: str,
        choice: EngineChoice,
        evaluate_users: int | None,
        rounds: int,
        patience: int | None = None,
        played_by: str | None = None,
        brief: bool = False,
    ) -> None:
        """As those of `DeviceTrainer`."""
        self.method, self.split, self.seed, self.device = method, split, seed, torch.device(device)
        self.devices = Devices.of(split, protocol.close_held_out, device)
        self.evaluator = Evaluator(split, seed, device, evaluate_users)
        self.pairs: Callable[[Params, Tensor, Tensor], Tensor] | None = None
        """Scores pairs of a user and an item; None where all items are scored for everybody in every round anyway."""
        effort = math.inf
        if isinstance(method, PooledMethod) and method.pairwise:
            self.pairs = method.score
            everybody = torch.arange(len(self.devices), device=device)
            effort = float(self.devices.lengths(everybody, method.negatives).sum())
        self.selection = Selection(self.evaluator, seed, effort, rounds, patience=patience)
        self.brief = brief and rounds > 0
        self.state = State({name: value.to(device) for name, value in method.start(split, seed).items()})
        if choice.used == "auto":
            ready = played_by == "fused" or loads(self._compile)
            choice = _COMPILED if ready else _SHORT
        self.engine_choice = choice
        self.network = KernelNetwork(self.devices) if choice.used == "fused" else None
        """What computes a transformer in place of torch."""
        self.warm = False

    def _compile(self) -> None:
        form = self.method.fused_form(self.split.data.n_items)
        assert isinstance(form, NextItem)  # no other form of a centralised method has kernels
        compile_network(form.network, self.state.shared, self.devices)

    def play(self, round_: int) -> Played:
        with nullcontext() if self.network is None else one_torch_thread():
            return self._play(round_)

    def _play(self, round_: int) -> Played:
        compiling = 0.0
        if self.network is not None and not self.warm:
            compiling, self.warm = wait_for(self._compile), True
        began = time.perf_counter()
        with self._there():
            model = self.method.learn(self.state.shared, self.split, self.devices, self.seed, round_)
        # Contiguous, as a checkpoint stores it.
        self.state = State({name: value.to(self.device).contiguous() for name, value in model.items()})
        now = time.perf_counter()
        rankings = _rankings(self.evaluator, self.selection, round_, self.brief)
        if self.pairs is None:
            for users in rankings[0].missing().split(_POOLED):
                self._rank_all(self.state, users, rankings)
        else:
            for ranking in rankings:
                for users in some_at_a_time(ranking.missing(), _POOLED):
                    if ranking.whole is None:
                        ranking.add(users, partial(self._candidates, users))
                    else:
                        self._rank_all(self.state, users, [ranking])
        valid, test = _metrics(rankings)
        seconds = {"train": now - began, "evaluate": time.perf_counter() - now}
        if compiling:
            seconds["compile"] = compiling
        return Played(self.state, valid, test, seconds=seconds, engine=self.engine_choice.used)

    def review(self, model: State, round_: int) -> Review:
        sampled, full = self.evaluator.sampled(), self.evaluator.full()
        for users in sampled.missing().split(_POOLED):
            self._rank_all(model, users, (sampled, full))
        return _review(sampled, full, {}, self._fresh(model))

    def _fresh(self, model: State) -> Rankings | None:
        """Test items ranked with fresh histories, where the method reads them."""
        if not self.method.reads_history:
            return None
        sampled, full = self.evaluator.sampled(), self.evaluator.full()
        for users in sampled.missing().split(_POOLED):
            self._rank_all(model, users, (sampled, full), self.split.fresh)
        return sampled, full

    def _rank_all(
        self, model: State, users: Tensor, rankings: Sequence[Sampled | SampleRanks | Full], split: Split | None = None
    ) -> None:
        """Rank for these users with their scores of all items."""
        scores = self.scores(model, users, split)
        with all_torch_threads():
            for ranking in rankings:
                ranking.add(users, partial(scores.gather, 1))

    def _candidates(self, users: Tensor, items: Tensor) -> Tensor:
        """The users' scores of items [C, K], pair by pair."""
        assert self.pairs is not None
        owners = users.repeat_interleave(items.shape[1])
        with self._there():
            return self.pairs(self.state.shared, owners, items.flatten()).view_as(items)

    def scores(self, model: State, users: Tensor, split: Split | None = None) -> Tensor:
        """The users' scores of all items; `split` has their histories, if it is another one."""
        with self._there():
            return self.method.scores(model.shared, split or self.split, users)

    def _there(self) -> AbstractContextManager[object]:
        """Within it kernels compute transformers, if they were chosen, and new tensors are on the device. On a CPU they
        are anyway, and it would delay each operation."""
        if self.network is not None:
            return using(self.network)
        return nullcontext() if self.device.type == "cpu" else self.device
