"""A node's learning in torch: all its users side by side, whatever the method and the channel."""

from __future__ import annotations

from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federec.aggregators.sum import Sum
from federec.cohort.cohort import Cohort
from federec.cohort.draw import Devices, draw
from federec.cohort.update import Update
from federec.evaluation.evaluator import Evaluator, Full, Sampled
from federec.evaluation.metrics import rank_metrics
from federec.evaluation.selection import SampleRanks, Selection
from federec.federation.channel import Channel
from federec.federation.device import cohorts, keep_private, learn
from federec.federation.scoring import rank_own, score_global, score_own
from federec.federation.state import State
from federec.network.engines import Sums, Task
from federec.network.parameters import Payload
from federec.stages.dense import Dense
from federec.stages.randomness import Real

_USERS = 256  # scored at a time on a few items
_FULL = 32  # the same on all items
_DRAWN = 32  # users whose samples are drawn at a time, to see which rows they need
Rankings = Sampled | SampleRanks | Full


class TorchEngine:
    """See `engines.Engine`."""

    def __init__(self, task: Task) -> None:
        self.task, self.method, self.seed = task, task.method, task.config.seed

    @cached_property
    def devices(self) -> Devices:
        devices = Devices.of(self.task.split, self.task.close_held_out)
        self.method.check(devices)
        return devices

    @cached_property
    def evaluator(self) -> Evaluator:
        return Evaluator(self.task.split, self.seed)

    @cached_property
    def learning(self) -> Tensor:
        return self.devices.ptr.diff().nonzero().flatten()

    @property
    def users(self) -> NDArray[np.int64]:
        users: NDArray[np.int64] = self.learning.numpy()
        return users

    def needed(self, round_: int) -> NDArray[np.int64]:
        needed = torch.zeros(self.devices.n_items, dtype=torch.bool)
        for ranked in (self.evaluator.candidates.valid, self.evaluator.candidates.test):
            needed[ranked[ranked >= 0].long()] = True
        lengths = self.devices.lengths(self.learning, self.method.negatives)
        for users in self.learning[lengths.argsort()].split(_DRAWN):  # like lengths together: little padding
            samples = draw(self.devices, users, self.seed, round_, self.method.negatives)
            real = torch.arange(samples.items.shape[1]) < samples.counts[:, None]
            needed[samples.items[real].long()] = True
            if (cover := self.method.cover(users, samples, self.devices.n_items)) is not None:
                needed[cover.flatten()] = True
        codes: NDArray[np.int64] = needed.nonzero().flatten().numpy()
        return codes

    def start(self) -> State:
        sizes = self.task.sizes
        state = State.start(self.method, sizes[0], len(self.devices), self.seed)
        for n_items in sizes[1:]:
            state = state.grown(self.method, n_items, self.seed)
        shared = self.task.shared.shared(self.devices.n_items)
        # A copy has the alignment of torch's own tensors: alignment can change the last bit of a product.
        state.shared = {name: torch.tensor(value) for name, value in shared.items()}
        return state

    def train(self, state: State, round_: int) -> tuple[Sums, Payload]:
        method = self.method
        rankings = self.rankings() if method.view == "own" else []

        def observe(cohort: Cohort) -> None:
            for ranks in rankings:
                rank_own(ranks, method, cohort, state, _FULL)

        total, touched = Sum(self.devices.n_items), torch.zeros(self.devices.n_items, dtype=torch.bool)

        def deliver(update: Update, users: Tensor) -> None:
            touched[update.ids] = True
            total.add(update)

        learned = learn(
            method,
            state,
            self.devices,
            self.learning,
            self.seed,
            round_,
            self.task.channel.per_user,
            deliver,
            observe,
            random=Real(),
            sum_only=True,
        )
        sums = {name: (float(sum_), int(count)) for name, (sum_, count) in learned.figures.items()}
        for ranks in rankings:
            sums |= metric_sums(ranks)
        return sums, self.sent(total, touched)

    def rankings(self) -> list[Rankings]:
        """The rankings of a round. Against all items only where the server sent the rows of all."""
        rankings: list[Rankings] = [self.evaluator.sampled()]
        if self.task.whole:
            samples = float(self.devices.lengths(self.learning, self.method.negatives).sum())
            rounds = self.task.config.rounds or 1
            rankings += Selection(self.evaluator, self.seed, samples, rounds).rankings(rounds)
        return rankings

    def sent(self, total: Sum, touched: Tensor) -> Payload:
        """The sum of the users' updates, after the stages that work on it."""
        channel = self.task.channel.per_sender
        sends = self.task.channel.per_user.sends(self.method.sends(), self.devices.n_items)
        if self.task.hidden:  # which rounds and masks whole tables, see `device.Work.disguised`
            channel = Channel((*channel.stages[:-1], *(() if "dense" in channel else (Dense(),))))
        rows = {name: value for name, value in total.total.items() if sends[name].rows}
        ids = touched.nonzero().flatten()
        ids = ids if rows else ids[:0]
        update = Update(
            self.devices.n_items,
            ids,
            torch.tensor([len(ids)]),
            {name: table[ids] for name, table in rows.items()},
            {name: value[None] for name, value in total.total.items() if name not in rows},
        )
        update, _ = channel.device(update, Real())
        tables = {name: value.numpy() for name, value in update.rows.items()}
        layers = {name: value[0].numpy() for name, value in update.layers.items()}
        return Payload(update.ids.numpy(), tables, layers, channel.format.value_bits)

    def evaluate(self, state: State, round_: int, full: bool) -> Sums:
        method = self.method
        rankings = self.rankings()
        if full:
            rankings = [self.evaluator.full()]
            if not self.task.hidden:  # else told in the round already; in two sums they would differ by one device
                rankings.append(self.evaluator.sampled())

        def observe(cohort: Cohort) -> None:
            for ranks in rankings:
                rank_own(ranks, method, cohort, state, _FULL)

        if method.view == "own":
            learn(method, state, self.devices, self.learning, self.seed, round_, Channel(), _drop, observe)
        else:
            for ranks in rankings:
                ranked = self.evaluator.users if ranks.whole is None else ranks.whole.nonzero().flatten()
                for users in ranked.split(_USERS if ranks.whole is None else _FULL):
                    ranks.add(users, partial(score_global, method, state, users, devices=self.devices))
        sums: Sums = {}
        for ranks in rankings:
            sums |= metric_sums(ranks)
        return sums

    def scores(self, user: int, state: State) -> NDArray[np.float32]:
        users, items = torch.tensor([user]), torch.arange(self.devices.n_items)[None]
        found: NDArray[np.float32] = score_global(self.method, state, users, items, self.devices)[0].numpy()
        return found

    def tuned(self, user: int, state: State, round_: int) -> NDArray[np.float32]:
        users, items = torch.tensor([user]), torch.arange(self.devices.n_items)[None]
        (cohort,) = cohorts(self.method, state, self.devices, users, self.seed, round_)
        self.method.fit(cohort)
        keep_private(cohort, state)
        found: NDArray[np.float32] = score_own(self.method, cohort, state, items)[0].numpy()
        return found


def _drop(update: Update, users: Tensor) -> None:
    """The round is only played again to rank: nothing leaves."""


def metric_sums(ranks: Rankings) -> Sums:
    """Sums of the metrics over the users that are ranked, and how many these are: `valid sampled hr@10`, ..."""
    kind = "sampled" if isinstance(ranks, Sampled) else "full"
    count = len(ranks.valid)
    if not count or (not isinstance(ranks, Full) and len(ranks.missing())):
        return {}
    parts = {"valid": ranks.valid} | ({} if isinstance(ranks, SampleRanks) else {"test": ranks.test})
    return {
        f"{part} {kind} {name}": (value * count, count)
        for part, values in parts.items()
        for name, value in rank_metrics(values).items()
    }
