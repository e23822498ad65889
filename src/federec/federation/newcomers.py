"""Devices that come after training: they have the shared parameters, a few items at most, and nothing learned yet.

Which scores a newcomer gives depends on how its method scores:
    it reads the history when it scores     the history is all it takes
    a linear score w . v + b                `fitted`: steps only on w and b, with rows v as they were received
    anything else                           `learned`: the method's own local rounds, of which nothing is sent
A newcomer without items scores as the method says (`DeviceMethod.unknown`), or with the private parameters that every
device starts with: items that many devices took have moved towards them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federec.cohort.cohort import Cohort
from federec.cohort.draw import Devices
from federec.cohort.layers import ITEMS, USERS
from federec.cohort.update import Update
from federec.errors import UserError
from federec.federation.channel import Channel
from federec.federation.device import learn
from federec.federation.scoring import score_global, score_own
from federec.federation.state import State, with_mean_rows
from federec.methods.base import DeviceMethod
from federec.methods.forms import AdditiveScore, LinearScore

STEPS = 20
"""Steps, or local rounds, of a newcomer. Chosen on validation items of ML-100K from 5, 20, 50 and 100, with
`pfedrec`, `fedmf` and `fedrap`."""
_NEGATIVES = 256
"""Items, drawn once, that stand for all others in the fit of a linear score."""
_USERS = 32
"""Newcomers that score all items at a time."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Newcomers:
    """Scores for devices that took no part in training. Of the state only what the server has is used."""

    method: DeviceMethod
    state: State
    n_items: int
    seed: int
    round: int
    """The round after which they come."""
    new: int = 0
    """Items at the end of the catalogue that came after training, too."""

    def __post_init__(self) -> None:
        name, shared = self.method.name, self.method.shared()
        if any(USERS in param.shape for param in shared.values()):
            raise UserError(f"'{name}' keeps values of each user on the server, so it has none for somebody new")
        if not shared:
            raise UserError(f"'{name}' shares nothing, so a new device has nothing to begin with")

    def scores(self, histories: Sequence[NDArray[np.int64]]) -> Floats:
        """Scores [C, n_items] for devices with these items, each once, oldest first."""
        known = np.array([len(items) > 0 for items in histories], bool)
        out = np.empty((len(histories), self.n_items), np.float32)
        if known.any():
            out[known] = self._known([items for items in histories if len(items)])
        if not known.all():
            out[~known] = self.unknown
        return out

    @cached_property
    def unknown(self) -> Floats:
        """Scores [n_items] for a device without items."""
        scores = self.method.unknown(self.state.shared, self.state.server)
        if scores is None and self.linear is not None and not self.linear.start.any():
            return self.linear.scores(np.empty(0, np.int64))  # it would find all items equal: it learns from negatives
        if scores is None:
            devices = devices_of([np.empty(0, np.int64)], self.n_items)
            scores = self._scored(self._start(1), torch.zeros(1, dtype=torch.int64), devices)[0]
        return _floats(scores)

    @cached_property
    def linear(self) -> Linear | None:
        """The private score layer and the rows that it scores, where the score is linear."""
        form, start = self.method.fused_form(self.n_items), self._start(1)
        if isinstance(form, LinearScore) and not form.own:
            table, rate = self.state.shared[form.table], form.rate
        elif isinstance(form, AdditiveScore) and form.common:
            table, rate = self.state.shared[form.common], form.rates[0]
            table = table + start.stores[form.own].start if form.own else table
        else:
            return None
        weight = start.private[form.weight][0].reshape(-1)
        bias = torch.zeros(1) if form.bias is None else start.private[form.bias][0].reshape(1)
        steps = form.passes or STEPS if isinstance(form, LinearScore) else STEPS
        share = self.method.negatives / (1 + self.method.negatives)
        ones = torch.ones_like(table[:, :1]) if form.bias else torch.zeros_like(table[:, :1])
        return Linear(
            _floats(torch.cat([table, ones], 1)), _floats(torch.cat([weight, bias])), rate, steps, share, self.seed
        )

    def _known(self, histories: Sequence[NDArray[np.int64]]) -> Floats:
        if not self.method.reads_history and self.linear is not None:
            return np.stack([self.linear.scores(items) for items in histories])
        devices, users = devices_of(histories, self.n_items), torch.arange(len(histories))
        state = self._start(len(histories))
        if self.method.reads_history:
            return _floats(self._scored(state, users, devices))
        return _floats(self.learned(state, devices, users))

    def learned(self, state: State, devices: Devices, users: Tensor) -> Tensor:
        """Scores [C, n_items] after local rounds, which change the private parameters of `state`."""
        out = torch.empty(len(users), self.n_items)
        own, rounds = self.method.view == "own", 1 if self.method.closed_form else STEPS

        def observe(cohort: Cohort, last: bool) -> None:
            for some in torch.arange(len(cohort)).split(_USERS) if last and own else ():
                out[cohort.users[some]] = score_own(self.method, cohort, state, self._items(len(some)), some)

        for number in range(1, rounds + 1):
            see, round_ = partial(observe, last=number == rounds), self.round + number
            learn(self.method, state, devices, users, self.seed, round_, Channel(), _keep, see)
        return out if own else self._scored(state, users, devices)

    def with_items(self, count: int) -> Newcomers:
        """The same with new items at the end of the catalogue, which nobody has: they have the mean row of all others,
        and no weight where items are weighed against each other."""
        shared = {}
        for name, param in self.method.shared().items():
            value, items = (
                self.state.shared[name].cpu(),
                [place for place, size in enumerate(param.shape) if size == ITEMS],
            )
            if param.rows or items == [0]:
                value = with_mean_rows(value, count)
            for place in () if items == [0] else items:
                size = list(value.shape)
                size[place] = count
                value = torch.cat([value, value.new_zeros(size)], place)
            shared[name] = value
        return replace(self, state=State(shared), n_items=self.n_items + count, new=self.new + count)

    def _start(self, devices: int) -> State:
        state = State.start(self.method, self.n_items - self.new, devices, self.seed)
        for store in state.stores.values():
            store.start = with_mean_rows(store.start, self.new)
        state.shared = {name: value.cpu() for name, value in self.state.shared.items()}
        return state

    def _items(self, users: int) -> Tensor:
        return torch.arange(self.n_items).expand(users, -1)

    def _scored(self, state: State, users: Tensor, devices: Devices) -> Tensor:
        parts = users.split(_USERS)
        return torch.cat([score_global(self.method, state, some, self._items(len(some)), devices) for some in parts])


@dataclass(frozen=True)
class Linear:
    """A linear score that a newcomer fits to its items by full steps of logistic regression, rows frozen. What would be
    drawn as negatives is there in expectation, so the same items always give the same scores."""

    rows: Floats
    """[n_items, dim + 1]; the last column is 1 where there is a bias, else 0."""
    start: Floats
    """[dim + 1] weights and bias that every device starts with."""
    rate: float
    steps: int
    negatives: float
    """The fraction of negatives among a device's samples."""
    seed: int

    @cached_property
    def others(self) -> Floats:
        """Rows that stand for all items."""
        if len(self.rows) <= _NEGATIVES:
            return self.rows
        return self.rows[np.random.default_rng(self.seed).choice(len(self.rows), _NEGATIVES, replace=False)]

    def fitted(self, items: NDArray[np.int64]) -> Floats:
        """[dim + 1] weights and bias after learning from items."""
        half = np.concatenate([self.rows[items], self.others]) * np.float32(0.5)
        pull = np.full(len(half), self.rate * self.negatives / len(self.others), np.float32)
        pull[: len(items)] = self.rate * (1 - self.negatives) / max(1, len(items))
        # A step adds sum_r pull_r (label_r - sigmoid(s_r)) row_r. With sigmoid(s) = (1 + tanh(s / 2)) / 2 that is a sum
        # which stays the same from step to step, less sum_r pull_r tanh(s_r / 2) row_r / 2.
        columns = np.multiply(half.T, pull, order="C")
        fixed = columns[:, : len(items)].sum(1) - columns[:, len(items) :].sum(1)
        weight = self.start
        for _ in range(self.steps):
            weight = weight + fixed - columns.dot(np.tanh(half.dot(weight)))  # `@` takes longer for arrays this small
        return weight

    def scores(self, items: NDArray[np.int64]) -> Floats:
        """[n_items] of a device with these items."""
        found: Floats = self.rows @ self.fitted(items)
        return found


def devices_of(histories: Sequence[NDArray[np.int64]], n_items: int) -> Devices:
    """Devices with these items, each once, oldest first."""
    lengths = [len(items) for items in histories]
    ptr = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    flat = [np.empty(0, np.int64), *histories]
    train = torch.from_numpy(np.concatenate(flat).astype(np.int32))
    gaps = np.concatenate([np.sort(items) - np.arange(len(items)) for items in flat]).astype(np.int32)
    alike = torch.zeros(len(histories), dtype=torch.int64)  # draws do not depend on who is asked for beside
    return Devices(n_items, ptr, train, ptr, torch.from_numpy(gaps), ptr, train, numbers=alike)


def _floats(values: Tensor) -> Floats:
    found: Floats = values.detach().float().cpu().contiguous().numpy()
    return found


def _keep(update: Update, users: Tensor) -> None:
    """A newcomer sends nothing."""
