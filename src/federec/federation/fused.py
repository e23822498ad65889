"""Playing a round with the CPU kernels: same samples, same arithmetic as `federation.round.play`, in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from federec.cohort.draw import Devices
from federec.cohort.layers import Params
from federec.cohort.store import RowStore
from federec.federation.channel import Link
from federec.federation.fused_base import Facts, Floats, FusedRound, Share, histories, on_threads
from federec.federation.fused_neural import NeuralRound, neural_scores
from federec.federation.state import State
from federec.kernels import plgc
from federec.kernels.additive import additive_room, additive_round, additive_scores
from federec.kernels.linear import Plan, linear_room, linear_round, linear_scores
from federec.kernels.pages import Pages
from federec.methods.base import DeviceMethod
from federec.methods.forms import AdditiveScore, Form, LinearScore, Mixing, NeuralScore
from federec.stages.noise import quantiles


class LinearRound(FusedRound):
    """A round of a method with a linear score."""

    def __init__(self, form: LinearScore, *facts: *Facts) -> None:
        super().__init__(*facts)
        self.form = form
        items = 0 if form.own else self.devices.n_items
        self.total = np.zeros((self.threads, items, start_of(self.state, form).shape[1]), np.float32)

    def learn(self, share: Share) -> None:
        form, method, devices = self.form, self.method, self.devices
        plan = Plan(
            negatives=method.negatives,
            batch=method.batch,
            epochs=method.epochs,
            rate=np.float32(form.rate),
            item_rate=np.float32(form.item_rate),
            rho=np.float32(form.rho),
            item_rho=np.float32(form.item_rho),
            laplace=np.float32(form.laplace),
            bias=form.bias is not None,
            alternate=form.alternate,
            passes=form.passes,
            disjoint=form.disjoint,
            own=form.own,
        )
        if form.own:
            self.reserve(self.state.stores[form.table], share.users)
        samples, mixing = self.most(share.users), mixing_of(self.state, form.mixing)
        rows, weights = rows_of(self.state, form), private(self.state, form)
        facts = histories(devices), quantiles().numpy(), *rows, weights, *share

        def play(t: int) -> None:
            room = linear_room(devices.n_items, samples, self.total.shape[2], method.batch)
            mix = plgc.make_mix(mixing, len(room.table), self.total.shape[2])
            linear_round(t, self.threads, plan, room, mix, *facts, self.total[t], self.loss[t])

        on_threads(self.threads, play)

    def change(self) -> Params:
        return {} if self.form.own else {self.form.table: torch.from_numpy(self.total.sum(0))}

    def notes(self) -> Params:
        return mixing_note(self.state, self.form.mixing, self.users)


class AdditiveRound(FusedRound):
    """A round of a method with an additive score. Devices rank when it is over: `play` scores nothing."""

    def __init__(self, form: AdditiveScore, *facts: *Facts) -> None:
        super().__init__(*facts)
        self.form = form
        pace, decay = form.round_decay ** (self.round - 1), (form.weight_decay, form.step_decay, form.tolerance)
        uphill = form.rho, form.common_rho
        rate, common, own = (step * pace for step in form.rates)
        steps = rate, common if form.common else 0, own if form.own else 0
        self.facts = np.array([*steps, *form.regularisers(self.round), form.squared, *decay, *uphill], np.float32)
        dim = private(self.state, form)[0].shape[1]
        self.total = np.zeros((self.threads, self.devices.n_items, dim), np.float32)

    def learn(self, share: Share) -> None:
        form, method, devices = self.form, self.method, self.devices
        if form.own:
            self.reserve(self.state.stores[form.own], share.users)
        samples, mixing = self.most(share.users), mixing_of(self.state, form.mixing)
        tables, facts = additive(self.state, form), (method.negatives, method.batch, method.epochs, self.facts)
        users = share.users, share.keys, share.sent

        def play(t: int) -> None:
            room = additive_room(devices.n_items, samples, self.total.shape[2])
            mix = plgc.make_mix(mixing, min(samples, devices.n_items), self.total.shape[2])
            whose = histories(devices), *facts, *users
            additive_round(t, self.threads, tables, room, mix, *whose, self.total[t], self.loss[t])

        on_threads(self.threads, play)

    def change(self) -> Params:
        return {self.form.common: torch.from_numpy(self.total.sum(0))} if self.form.common else {}

    def notes(self) -> Params:
        return mixing_note(self.state, self.form.mixing, self.users)


def form_of(method: DeviceMethod, devices: Devices, link: Link | None = None) -> Form:
    """The form of a method that has one, with what the kernel does of the channel."""
    form = method.fused_form(devices.n_items)
    assert form is not None
    fused = (link or Link.of(method)).channel.fuse(form)
    assert not isinstance(fused, str), fused
    return fused


def fused_round(
    method: DeviceMethod, state: State, devices: Devices, seed: int, round_: int, link: Link | None = None
) -> FusedRound:
    """A round in which no device has played yet."""
    link = link or Link.of(method)
    form, settings = form_of(method, devices, link), (method, state, devices, seed, round_)
    playing: FusedRound
    if isinstance(form, NeuralScore):
        playing = NeuralRound(form, *settings)
    elif isinstance(form, AdditiveScore):
        playing = AdditiveRound(form, *settings)
    else:
        playing = LinearRound(form, *settings)
    playing.link = link
    return playing


def warm_up(method: DeviceMethod, state: State, devices: Devices) -> None:
    """Compile the kernels, or load what was compiled before: a round in which nobody takes part."""
    nobody, nothing = torch.arange(0), torch.arange(0)[:, None]
    fused_round(method, state, devices, 0, 1).play(nobody, nothing)
    fused_scores(method, state, devices, nobody, nothing)


def fused_scores(method: DeviceMethod, state: State, devices: Devices, users: Tensor, items: Tensor) -> Tensor:
    """Scores [C, K] of items [C, K] with the server's rows."""
    form = form_of(method, devices)
    if isinstance(form, NeuralScore):
        return neural_scores(form, state, users, items)
    out, threads = np.empty(items.shape, np.float32), torch.get_num_threads()
    share = users.numpy(), items.int().contiguous().numpy(), out
    if isinstance(form, AdditiveScore):
        on_threads(threads, lambda t: additive_scores(t, threads, additive(state, form), *share))
    elif form.own:  # a sum of which one part is missing
        tables = torch.zeros_like(start_of(state, form)).numpy(), *rows_of(state, form), True, *private(state, form)
        on_threads(threads, lambda t: additive_scores(t, threads, tables, *share))
    else:
        facts = state.shared[form.table].numpy(), private(state, form)
        on_threads(threads, lambda t: linear_scores(t, threads, *facts, *share))
    return torch.from_numpy(out)


def start_of(state: State, form: LinearScore) -> Tensor:
    """The item rows that devices begin the round with; of private ones those that they began the run with."""
    return state.stores[form.table].start if form.own else state.shared[form.table]


def rows_of(state: State, form: LinearScore) -> tuple[Floats, Pages]:
    """The same for a kernel, with the store that private rows are kept in, or an empty one."""
    start = start_of(state, form)
    return start.numpy(), pages(state.stores[form.table] if form.own else RowStore(start, 0))


def pages(store: RowStore) -> Pages:
    """A store, for a kernel to read and write."""
    return Pages(*(part.numpy() for part in (store.held, store.pages, store.ids, store.rows)))


def additive(state: State, form: AdditiveScore) -> tuple[Any, ...]:
    """What the additive kernels read and write of a state. A table that the form has not is there, but 0."""
    common = state.shared[form.common] if form.common else torch.zeros_like(state.stores[str(form.own)].start)
    store = state.stores[form.own] if form.own else RowStore(torch.zeros_like(common), 0)
    return common.numpy(), store.start.numpy(), pages(store), form.own is not None, *private(state, form)


def mixing_of(state: State, mixing: Mixing | None) -> plgc.Mixing | None:
    """What the kernels read and write of a state to mix rows."""
    if mixing is None:
        return None
    odds = state.private[mixing.odds].numpy() if mixing.odds else np.zeros(0, np.float32)
    facts = mixing.weight, 1 - mixing.smoothing, mixing.beta, mixing.gamma
    return plgc.Mixing(odds, *(np.float32(fact) for fact in facts))


def own_share(state: State, mixing: Mixing, users: Tensor) -> Tensor:
    """How much these users take of their own rows where they mix, [C]."""
    return state.private[mixing.odds][users].sigmoid() if mixing.odds else torch.full((len(users),), mixing.weight)


def mixing_note(state: State, mixing: Mixing | None, users: list[Tensor]) -> Params:
    """The sum of that over the users, and their number, where a rule sets it."""
    if mixing is None or mixing.odds is None:
        return {}
    shares = own_share(state, mixing, torch.cat(users))
    return {"mixing weight": torch.stack([shares.sum(), shares.new_tensor(len(shares))])}


def private(state: State, form: LinearScore | AdditiveScore) -> tuple[Floats, Floats]:
    """Views of all devices' weights [N, dim] and biases [N]; without a bias, zeros that stay so."""
    weights = state.private[form.weight]
    biases = torch.zeros(len(weights)) if form.bias is None else state.private[form.bias]
    return weights.view(len(weights), -1).numpy(), biases.view(-1).numpy()
