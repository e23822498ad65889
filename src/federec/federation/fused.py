"""Rounds and scores of methods with a linear or an additive score, by the CPU kernels: same samples, same arithmetic as
`federation.round.play`, in one pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from federec.cohort.draw import Devices
from federec.cohort.layers import Params
from federec.cohort.store import RowStore
from federec.federation.fused_base import Emphasising, Floats, FusedRound, Integers, RoundInputs, histories, noise_of
from federec.federation.state import State
from federec.federation.threads import borrowed, even_parts, on_threads
from federec.kernels import additive, linear, plgc
from federec.kernels.cpu import Outcome, Parts, Players, Request, floats, make_noise
from federec.kernels.pages import Pages
from federec.methods.base import DeviceMethod
from federec.methods.forms import AdditiveScore, LinearScore, Mixing


class LinearRound(FusedRound):
    """A round of a method with a linear score."""

    def __init__(self, form: LinearScore, inputs: RoundInputs) -> None:
        self.form, self.dim, self.scores = form, start_of(inputs.state, form).shape[1], not form.own
        super().__init__(inputs, 0 if form.own else inputs.devices.n_items, self.dim)

    def learn(self, players: Players, ptr: Integers, outcome: Outcome) -> None:
        form, method, devices = self.form, self.method, self.devices
        plan = linear.Plan(
            negatives=method.negatives,
            batch=method.batch,
            epochs=method.epochs,
            rate=np.float32(form.rate),
            item_rate=np.float32(form.item_rate),
            rho=np.float32(form.rho),
            item_rho=np.float32(form.item_rho),
            bias=form.bias is not None,
            alternate=form.alternate,
            passes=form.passes,
            disjoint=form.disjoint,
            own=form.own,
        )
        if form.own:
            self.reserve(self.state.stores[form.table], players.users)
        dim, mixing = self.dim, mixing_of(self.state, form.mixing)
        known, tables = histories(devices), linear_tables(self.state, form)
        emphasising, sizes = Emphasising(form.emphasis, devices), (devices.n_items, self.most(), dim, method.batch)

        def play(parts: Parts) -> None:
            with borrowed(devices, linear.linear_workspace, *sizes) as workspace:
                mix = plgc.make_mix(mixing, len(workspace.table), dim)
                emphasis = emphasising.arrays(len(workspace.table))
                noise = make_noise(form.laplace)
                linear.linear_round(parts, plan, noise, workspace, mix, emphasis, known, tables, players, outcome)

        on_threads(ptr, play)

    def rank(self, users: Tensor, ask: Tensor, lists: int) -> Tensor:
        """Each thread ranks its users while their scores are in its cache."""
        with borrowed(self.devices, floats, *ask.shape) as scored:
            return self._play(users, ask, None, scored, lists)

    def change(self) -> Params:
        rows, _ = self.sums.close()
        return {} if self.form.own else {self.form.table: rows}

    def notes(self) -> Params:
        return mixing_note(self.state, self.form.mixing, self.users)


class AdditiveRound(FusedRound):
    """A round of a method with an additive score."""

    scores = True

    def __init__(self, form: AdditiveScore, inputs: RoundInputs) -> None:
        self.form, self.dim = form, private(inputs.state, form)[0].shape[1]
        super().__init__(inputs, inputs.devices.n_items, self.dim)
        pace = form.round_decay ** (self.round - 1)
        rate, common_rate, own_rate = (np.float32(step * pace) for step in form.rates)
        away, small = (np.float32(weight) for weight in form.regularisers(self.round))
        self.steps = additive.Steps(
            negatives=self.method.negatives,
            batch=self.method.batch,
            epochs=self.method.epochs,
            rate=rate,
            common_rate=common_rate if form.common else np.float32(0),
            own_rate=own_rate if form.own else np.float32(0),
            away=away,
            small=small,
            squared=form.squared,
            weight_decay=np.float32(form.weight_decay),
            step_decay=np.float32(form.step_decay),
            tolerance=np.float32(form.tolerance),
            rho=np.float32(form.rho),
            common_rho=np.float32(form.common_rho),
            alternate=form.alternate,
        )

    def learn(self, players: Players, ptr: Integers, outcome: Outcome) -> None:
        form, devices = self.form, self.devices
        if form.own:
            self.reserve(self.state.stores[form.own], players.users)
        dim, mixing, steps = self.dim, mixing_of(self.state, form.mixing), self.steps
        known, tables = histories(devices), additive_tables(self.state, form)
        emphasising, sizes = Emphasising(form.emphasis, devices), (devices.n_items, self.most(), dim)

        def play(parts: Parts) -> None:
            with borrowed(devices, additive.additive_workspace, *sizes) as workspace:
                mix = plgc.make_mix(mixing, len(workspace.c), dim)
                emphasis = emphasising.arrays(len(workspace.c))
                noise = noise_of(form.laplace if form.common else 0.0)
                additive.additive_round(parts, steps, noise, workspace, mix, emphasis, known, tables, players, outcome)

        on_threads(ptr, play)

    def play(self, users: Tensor, ask: Tensor, judges: Tensor | None = None) -> Tensor:
        """As in the base; by judges only with shared rows, which a device ranks with beside its own (`with_own`)."""
        scores = super().play(users, ask, judges)
        return scores if judges is not None else with_own(lambda _: scores, self.form, self.state, users, ask)

    def change(self) -> Params:
        rows, _ = self.sums.close()
        return {self.form.common: rows} if self.form.common else {}

    def notes(self) -> Params:
        return mixing_note(self.state, self.form.mixing, self.users)


def linear_scores(
    form: LinearScore, method: DeviceMethod, state: State, devices: Devices, users: Tensor, items: Tensor
) -> Tensor:
    """Scores [C, K] of items [C, K] with the server's rows."""
    request, tables = asked(users, items), linear_tables(state, form)
    if form.own:  # a sum of which one part is missing
        zeros = np.zeros_like(tables.rows)
        _sums(additive.Tables(zeros, tables.rows, tables.store, True, tables.weights, tables.biases), request)
    else:
        width = tables.rows.shape[1] + 1
        on_threads(even_parts(len(users)), lambda some: linear.linear_scores(some, floats(width), tables, request))
    return torch.from_numpy(request.scores)


def additive_scores(
    form: AdditiveScore, method: DeviceMethod, state: State, devices: Devices, users: Tensor, items: Tensor
) -> Tensor:
    """Scores [C, K] of items [C, K] with the server's rows and each device's own."""
    request = asked(users, items)
    _sums(additive_tables(state, form), request)
    return torch.from_numpy(request.scores)


def _sums(tables: additive.Tables, request: Request) -> None:
    """Fill in the scores by an additive score."""

    def score(parts: Parts) -> None:
        additive.additive_scores(parts, np.full(len(tables.start), -1, np.int32), tables, request)

    on_threads(even_parts(len(request.users)), score)


def with_own(
    score: Callable[[Tensor], Tensor], form: AdditiveScore, state: State, users: Tensor, items: Tensor
) -> Tensor:
    """Scores [C, K] of items [C, K] with shared rows, and what the users' own rows add to them."""
    shared = score(items)
    if not form.own or not items.numel():
        return shared
    tables = additive_tables(state, form)
    alone = tables._replace(common=np.zeros_like(tables.common), biases=np.zeros_like(tables.biases))
    request = asked(users, items)
    _sums(alone, request)
    return shared + torch.from_numpy(request.scores)


def asked(users: Tensor, items: Tensor) -> Request:
    """Items [C, K] to score for users, for a kernel."""
    return Request(users.numpy(), items.contiguous().numpy(), np.empty(items.shape, np.float32))


def start_of(state: State, form: LinearScore) -> Tensor:
    """The item rows that devices begin the round with; of private ones those that they began the run with."""
    return state.stores[form.table].start if form.own else state.shared[form.table]


def linear_tables(state: State, form: LinearScore) -> linear.Tables:
    """What the linear kernels read and write of a state; the store is empty where no rows are private."""
    start = start_of(state, form)
    store = state.stores[form.table] if form.own else RowStore(start, 0)
    return linear.Tables(start.numpy(), pages(store), *private(state, form))


def pages(store: RowStore) -> Pages:
    """A store, for a kernel to read and write."""
    return Pages(*(part.numpy() for part in (store.held, store.pages, store.ids, store.rows)))


def additive_tables(state: State, form: AdditiveScore) -> additive.Tables:
    """What the additive kernels read and write of a state. A table that the form has not is there, but 0."""
    common = state.shared[form.common] if form.common else torch.zeros_like(state.stores[str(form.own)].start)
    store = state.stores[form.own] if form.own else RowStore(torch.zeros_like(common), 0)
    keeps, weights = form.own is not None, private(state, form)
    return additive.Tables(common.numpy(), store.start.numpy(), pages(store), keeps, *weights)


def mixing_of(state: State, mixing: Mixing | None) -> plgc.Mixing | None:
    """What the kernels read and write of a state to mix rows."""
    if mixing is None:
        return None
    odds = state.private[mixing.odds].numpy() if mixing.odds else np.zeros(0, np.float32)
    settings = mixing.weight, 1 - mixing.smoothing, mixing.beta, mixing.gamma
    return plgc.Mixing(odds, *(np.float32(value) for value in settings))


def own_weight(state: State, mixing: Mixing, users: Tensor) -> Tensor:
    """How much these users take of their own rows where they mix, [C]."""
    return state.private[mixing.odds][users].sigmoid() if mixing.odds else torch.full((len(users),), mixing.weight)


def judging(state: State, form: LinearScore | AdditiveScore, users: Tensor) -> Tensor:
    """All that these users score with besides item rows, side by side: w, b and, where they mix, a."""
    weights = state.private[form.weight][users].flatten(1)
    biases = weights.new_zeros(len(users)) if form.bias is None else state.private[form.bias][users]
    values = [weights, biases.view(-1, 1)]
    if form.mixing is not None:
        values.append(own_weight(state, form.mixing, users)[:, None])
    return torch.cat(values, 1)


def mixing_note(state: State, mixing: Mixing | None, users: list[Tensor]) -> Params:
    """The sum of that over the users, and their number, where a rule sets it."""
    if mixing is None or mixing.odds is None:
        return {}
    weights = own_weight(state, mixing, torch.cat(users))
    return {"mixing weight": torch.stack([weights.sum(), weights.new_tensor(len(weights))])}


def private(state: State, form: LinearScore | AdditiveScore) -> tuple[Floats, Floats]:
    """Views of all devices' weights [N, dim] and biases [N]; without a bias, zeros that stay so."""
    weights = state.private[form.weight]
    biases = torch.zeros(len(weights)) if form.bias is None else state.private[form.bias]
    return weights.view(len(weights), -1).numpy(), biases.view(-1).numpy()
