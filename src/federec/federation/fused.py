"""Playing a round with the CPU kernels: same samples, same arithmetic as `federation.round.play`, in one pass."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federec import streams
from federec.cohort.draw import Devices
from federec.cohort.layers import Params
from federec.cohort.store import RowStore
from federec.federation.round import LOSS, RoundReport, Sum, settle
from federec.federation.state import State
from federec.federation.update import Channel, Mean
from federec.kernels.additive import additive_round, additive_scores
from federec.kernels.linear import linear_round, linear_scores
from federec.methods.base import DeviceMethod
from federec.methods.forms import AdditiveScore, Form, LinearScore

Floats = NDArray[np.float32]


class FusedRound:
    """One round, a few users at a time. A subclass drives the kernel of one form."""

    def __init__(self, method: DeviceMethod, state: State, devices: Devices, seed: int, round_: int) -> None:
        self.method, self.state, self.devices, self.seed, self.round = method, state, devices, seed, round_
        self.threads = min(torch.get_num_threads(), numba.get_num_threads())
        numba.set_num_threads(self.threads)
        self.loss = np.zeros((self.threads, 2))
        """Each thread's sum of losses, and how many."""
        self.touched: list[NDArray[np.int64]] = []

    def play(self, users: Tensor, ask: Tensor) -> Tensor:
        """These users learn; returns the scores of the items `ask` [C, K], each with the user's own rows."""
        # Longest first, dealt out to the threads in turn: all end at about the same time.
        order = self.devices.lengths(users, self.method.negatives).argsort(descending=True, stable=True)
        scores = np.zeros(ask.shape, np.float32)
        touched = np.zeros(len(users), np.int64)
        keys = streams.keys(self.seed, self.round, users[order]).numpy().view(np.uint64)
        self.learn(users[order].numpy(), keys, ask[order].numpy(), scores, touched)
        self.touched.append(touched)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return torch.from_numpy(scores)[back]

    def learn(
        self, users: NDArray[np.int64], keys: NDArray[np.uint64], ask: NDArray[np.int64], scores: Floats,
        touched: NDArray[np.int64],
    ) -> None:  # fmt: skip
        """Run the kernel on users with these stream keys; fills in the scores and how many rows each has touched."""
        raise NotImplementedError(f"{type(self).__name__}.learn")

    def change(self) -> Params:
        """The devices' changes of shared item rows, summed."""
        raise NotImplementedError(f"{type(self).__name__}.change")

    def finish(self, sum_: Sum = list) -> RoundReport:
        """The server takes the mean of the changes."""
        n_items, total, touched = self.devices.n_items, self.change(), np.concatenate(self.touched)
        channel, width = Channel(n_items), sum(rows.shape[1] for rows in total.values())
        channel.up_bytes = channel.down_bytes = int(channel.rows_bytes(torch.from_numpy(touched), width).sum())
        loss = {LOSS: torch.from_numpy(self.loss.sum(0))}
        return settle(self.method, self.state, Mean(n_items, total, len(touched)), channel, loss, sum_)


class LinearRound(FusedRound):
    """A round of a method with a linear score."""

    def __init__(self, form: LinearScore, *facts: *tuple[DeviceMethod, State, Devices, int, int]) -> None:
        super().__init__(*facts)
        self.form = form
        self.total = np.zeros((self.threads, *self.state.shared[form.table].shape), np.float32)

    def learn(
        self, users: NDArray[np.int64], keys: NDArray[np.uint64], ask: NDArray[np.int64], scores: Floats,
        touched: NDArray[np.int64],
    ) -> None:  # fmt: skip
        form, method, devices = self.form, self.method, self.devices
        linear_round(
            self.state.shared[form.table].numpy(),
            *private(self.state, form),
            users,
            devices.ptr.numpy(),
            devices.train.numpy(),
            devices.closed_ptr.numpy(),
            devices.gaps.numpy(),
            keys,
            method.negatives,
            method.batch,
            method.epochs,
            np.array([form.rate, form.item_rate], np.float32),
            form.alternate,
            form.bias is not None,
            ask,
            scores,
            self.total,
            self.loss,
            touched,
        )

    def change(self) -> Params:
        return {self.form.table: torch.from_numpy(self.total.sum(0))}


class AdditiveRound(FusedRound):
    """A round of a method with an additive score. Devices rank when it is over: `play` scores nothing."""

    def __init__(self, form: AdditiveScore, *facts: *tuple[DeviceMethod, State, Devices, int, int]) -> None:
        super().__init__(*facts)
        self.form = form
        pace, decay = form.round_decay ** (self.round - 1), (form.weight_decay, form.step_decay, form.tolerance)
        rate, common, own = (step * pace for step in form.rates)
        steps = rate, common if form.common else 0, own if form.own else 0
        self.facts = np.array([*steps, *form.regularisers(self.round), form.squared, *decay], np.float32)
        dim = private(self.state, form)[0].shape[1]
        self.total = np.zeros((self.threads, self.devices.n_items, dim), np.float32)

    def learn(
        self, users: NDArray[np.int64], keys: NDArray[np.uint64], ask: NDArray[np.int64], scores: Floats,
        touched: NDArray[np.int64],
    ) -> None:  # fmt: skip
        form, method, devices = self.form, self.method, self.devices
        if form.own:
            store, chosen = self.state.stores[form.own], torch.from_numpy(users)
            drawn = store.held[chosen] + devices.lengths(chosen, method.negatives)
            store.reserve(chosen, drawn.clamp(max=devices.n_items))
        additive_round(
            *additive(self.state, form),
            users,
            devices.ptr.numpy(),
            devices.train.numpy(),
            devices.closed_ptr.numpy(),
            devices.gaps.numpy(),
            keys,
            method.negatives,
            method.batch,
            method.epochs,
            self.facts,
            self.total,
            self.loss,
            touched,
        )

    def change(self) -> Params:
        return {self.form.common: torch.from_numpy(self.total.sum(0))} if self.form.common else {}


def form_of(method: DeviceMethod, devices: Devices) -> Form:
    """The form of a method that has one."""
    form = method.fused_form(devices.n_items)
    assert form is not None
    return form


def fused_round(method: DeviceMethod, state: State, devices: Devices, seed: int, round_: int) -> FusedRound:
    """A round in which nobody has played yet."""
    form, facts = form_of(method, devices), (method, state, devices, seed, round_)
    return AdditiveRound(form, *facts) if isinstance(form, AdditiveScore) else LinearRound(form, *facts)


def fused_scores(method: DeviceMethod, state: State, devices: Devices, users: Tensor, items: Tensor) -> Tensor:
    """Scores [C, K] of items [C, K] with the server's rows."""
    form = form_of(method, devices)
    out = np.empty(items.shape, np.float32)
    if isinstance(form, AdditiveScore):
        additive_scores(*additive(state, form), users.numpy(), items.contiguous().numpy(), out)
        return torch.from_numpy(out)
    shared = state.shared[form.table].numpy()
    linear_scores(shared, *private(state, form), users.numpy(), items.contiguous().numpy(), out)
    return torch.from_numpy(out)


def additive(state: State, form: AdditiveScore) -> tuple[NDArray[Any] | bool, ...]:
    """What the additive kernels read and write of a state. A table that the form has not is there, but 0."""
    weights, biases = private(state, form)
    common = state.shared[form.common] if form.common else torch.zeros_like(state.stores[str(form.own)].start)
    store = state.stores[form.own] if form.own else RowStore(torch.zeros_like(common), 0)
    tables = (part.numpy() for part in (common, store.start, store.held, store.pages, store.ids, store.rows))
    return *tables, form.own is not None, weights, biases


def private(state: State, form: Form) -> tuple[Floats, Floats]:
    """Views of all devices' weights [N, dim] and biases [N]; without a bias, zeros that nothing is written to."""
    weights = state.private[form.weight]
    biases = torch.zeros(len(weights)) if form.bias is None else state.private[form.bias]
    return weights.view(len(weights), -1).numpy(), biases.view(-1).numpy()
