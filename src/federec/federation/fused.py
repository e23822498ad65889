"""Playing a round with the CPU kernels: same samples, same arithmetic as `federation.round.play`, in one pass."""

from __future__ import annotations

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federec import streams
from federec.cohort.draw import Devices
from federec.federation.round import RoundReport
from federec.federation.state import State
from federec.federation.update import Channel
from federec.kernels.linear import linear_round, linear_scores
from federec.methods.base import DeviceMethod, LinearScore


class FusedRound:
    """One round of a method with a linear score, a few users at a time."""

    def __init__(self, method: DeviceMethod, state: State, devices: Devices, seed: int, round_: int) -> None:
        form = method.linear_score(devices.n_items)
        assert form is not None
        self.method, self.state, self.devices, self.seed, self.round = method, state, devices, seed, round_
        self.form = form
        threads = min(torch.get_num_threads(), numba.get_num_threads())
        numba.set_num_threads(threads)
        self.total = np.zeros((threads, *state.shared[form.table].shape), np.float32)
        self.loss = np.zeros((threads, 2))
        self.touched: list[NDArray[np.int64]] = []

    def play(self, users: Tensor, ask: Tensor) -> Tensor:
        """These users learn; returns the scores of the items `ask` [C, K], each with the user's own rows."""
        form, method, devices = self.form, self.method, self.devices
        # Longest first, dealt out to the threads in turn: all end at about the same time.
        order = devices.lengths(users, method.negatives).argsort(descending=True, stable=True)
        chosen = users[order].numpy()
        scores = np.zeros((len(chosen), ask.shape[1]), np.float32)
        touched = np.zeros(len(chosen), np.int64)
        linear_round(
            self.state.shared[form.table].numpy(),
            *private(self.state, form),
            chosen,
            devices.ptr.numpy(),
            devices.train.numpy(),
            devices.closed_ptr.numpy(),
            devices.gaps.numpy(),
            streams.keys(self.seed, self.round, users[order]).numpy().view(np.uint64),
            method.negatives,
            method.batch,
            method.epochs,
            np.array([form.rate, form.item_rate], np.float32),
            form.alternate,
            form.bias is not None,
            ask[order].numpy(),
            scores,
            self.total,
            self.loss,
            touched,
        )
        self.touched.append(touched)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return torch.from_numpy(scores)[back]

    def finish(self) -> RoundReport:
        """The server takes the mean of the changes."""
        form, touched = self.form, np.concatenate(self.touched)
        mean = torch.from_numpy(self.total.sum(0)) / len(touched)
        self.state.shared = self.method.server_step(self.state.shared, {form.table: mean}, self.state.server)
        size = Channel(self.devices.n_items).rows_bytes(torch.from_numpy(touched), mean.shape[1])
        loss, times = self.loss.sum(0)
        each = float(size.double().mean())
        return RoundReport(loss / times, each, each, self.method.inspect(self.state.shared))


def fused_scores(method: DeviceMethod, state: State, users: Tensor, items: Tensor) -> Tensor:
    """Scores [C, K] with the server's rows."""
    form = method.linear_score(len(next(iter(state.shared.values()))))
    assert form is not None
    out = np.empty(items.shape, np.float32)
    shared = state.shared[form.table].numpy()
    linear_scores(shared, *private(state, form), users.numpy(), items.contiguous().numpy(), out)
    return torch.from_numpy(out)


def private(state: State, form: LinearScore) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Views of all devices' weights [N, dim] and biases [N]; without a bias, zeros that nothing is written to."""
    weights = state.private[form.weight]
    biases = torch.zeros(len(weights)) if form.bias is None else state.private[form.bias]
    return weights.view(len(weights), -1).numpy(), biases.view(-1).numpy()
