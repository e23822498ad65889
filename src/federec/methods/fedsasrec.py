"""FedSASRec - SASRec (Kang and McAuley, ICDM 2018) trained on devices, ours.

    g_i = sum over the positions of device i of d loss / d parameters         n_i = number of these positions
    G = sum_i g_i / sum_i n_i,       parameters step by AdamW along G         on the server

The server needs nothing but two sums, so a round with some devices is the step of centralised `sasrec` with these users
as the mini-batch, and secure aggregation fits. A device sends g_i and n_i, both divided by the length of the window so
that values stay near 1. It scores with the parameters and its own history.

With several local steps g_i is the mean of the gradients on the way of a device that goes down its own loss:
    g_i = (1 / S) sum_s g_i(p_s),    p_(s+1) = p_s - local_lr g_i(p_s) / n_i

What a server would see of a single device without secure aggregation: which biases b_j a gradient raises, which are
those of the device's own items.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from federec.cohort.cohort import Cohort
from federec.cohort.draw import History
from federec.cohort.layers import Param, Params, dot
from federec.cohort.optim import server_moments
from federec.cohort.rows import Rows
from federec.mathematics.windows import Windows, gradient, gradients, outputs, stream_keys
from federec.methods.base import DeviceMethod
from federec.methods.forms import NextItem
from federec.methods.sequence import SequenceSettings

_REASON = "its devices send gradients of a model that sees the order of items, and draw no samples"
_LEAST = 1e-8  # of a mean of positions: possibly no device has any
_PICKED = 32  # items whose scores by one product cost as much as that of one whose row is looked up


class FedSASRec(DeviceMethod, SequenceSettings):
    """A transformer over a device's items in their order, from one gradient a device and round.

    >>> fr.FedSASRec(dim=8).dim
    8
    """

    name: ClassVar[str] = "fedsasrec"
    paper: ClassVar[str] = "ours, after Kang and McAuley, Self-Attentive Sequential Recommendation, ICDM 2018"
    reads_history: ClassVar[bool] = True
    default_participation: ClassVar[float] = 0.1
    default_rounds: ClassVar[int] = 1200
    follow_rounds: ClassVar[tuple[str, ...]] = ("schedule",)
    refuses: ClassVar[Mapping[str, str]] = dict.fromkeys(("dualper", "plgc", "sam", "recency"), _REASON)

    negatives: Literal[0] = 0
    """None are drawn: every item competes with the next one."""
    local_steps: PositiveInt = 1
    """Gradients that a device takes in a round, one after the other; with 1 a round is a step of `sasrec`."""
    local_lr: NonNegativeFloat = 0.1
    """Step of a device between two of its gradients."""

    def shared(self) -> dict[str, Param]:
        return self.network.params()

    def sends(self) -> dict[str, Param]:
        return self.shared() | {"positions": Param((1,), "zeros")}

    def fetch(self, shared: Params, users: Tensor, rows: Rows) -> tuple[Params, Params]:
        return {}, {}  # devices read the shared parameters and do not change them

    def effort(self, lengths: Tensor, n_items: int) -> float:
        # A device's gradient passes through its window three times, and ranks all items at each of its places; to rank
        # for a user takes one pass. The schedule allows a fifth of the effort, so this is 40 % of a user for a device.
        return 2.0 * n_items * len(lengths)

    def fit(self, cohort: Cohort) -> None:
        """Nothing is kept on the device: it takes its gradient when it is asked for its message."""

    def message(self, cohort: Cohort, shared: Params) -> Params:
        assert cohort.history is not None
        keys = cohort.samples.key
        history = self.ordered(cohort.history, keys)
        windows = Windows.of(history.items, history.counts, self.window)
        counts = (history.counts - 1).clamp(min=0)
        p = {name: value.expand(len(cohort), *value.shape) for name, value in shared.items()}
        total: Params = {}
        for step in range(self.local_steps):
            losses, found = gradients(self.network, p, windows, self.dropout, stream_keys(keys, step))
            if step + 1 < self.local_steps:
                rate = self.local_lr / counts.clamp(min=1)
                p = {name: p[name] - rate.view(-1, *[1] * (value.dim() - 1)) * value for name, value in found.items()}
            total = {name: total[name] + value if total else value for name, value in found.items()}
        cohort.losses = [losses / counts.clamp(min=1)]
        torch._foreach_div_([*total.values()], self.local_steps * self.window)  # in place: there is a table per device
        return total | {"positions": (counts / self.window).to(losses)[:, None]}

    def adds_up(self, round_: int) -> bool:
        return self.local_steps == 1

    def summed(self, cohort: Cohort, shared: Params) -> Params:
        assert cohort.history is not None
        history, keys = self.ordered(cohort.history, cohort.samples.key), stream_keys(cohort.samples.key, 0)
        windows = Windows.of(history.items, history.counts, self.window)
        losses, found = gradient(self.network, shared, windows, self.dropout, keys)
        cohort.losses = [losses / (history.counts - 1).clamp(min=1)]
        total = dict(zip(found, torch._foreach_div([*found.values()], self.window), strict=True))
        return total | {"positions": (windows.counts.sum() / self.window).to(losses)[None]}

    def fused_form(self, n_items: int) -> NextItem | None:
        return NextItem(self.network) if self.adds_up(1) else None

    def upload_bytes(self, cohort: Cohort, message: Params) -> Tensor:
        return torch.full_like(cohort.users, 4 + int(self.download_bytes(cohort)[0]))

    def download_bytes(self, cohort: Cohort) -> Tensor:
        return torch.full_like(cohort.users, 4 * self._values(cohort.n_items))

    def _values(self, n_items: int) -> int:
        """Numbers in all shared parameters."""
        return sum(torch.Size(param.sized(n_items)).numel() for param in self.shared().values())

    def server_start(self, shared: Params) -> Params:
        return server_moments(shared)

    def server_step(self, shared: Params, mean: Params, memory: Params) -> Params:
        positions = mean["positions"].clamp(min=_LEAST)
        gradients = {name: mean[name] / positions for name in shared}
        return self.stepped(shared, gradients, memory, self.falls)

    def recall(self, shared: Params, history: History, items: Tensor) -> Params:
        output = outputs(self.network, shared, history.items, history.counts)
        if items.stride(0) == 0:  # everybody scores the same items
            return {"scores": torch.addmm(shared["item_bias"][items[0]], output, shared["items"][items[0]].T)}
        if len(shared["items"]) < _PICKED * items.shape[1]:
            return {"scores": torch.addmm(shared["item_bias"], output, shared["items"].T).gather(1, items)}
        return {"scores": dot(output, shared["items"][items]) + shared["item_bias"][items]}

    def score(self, p: Params) -> Tensor:
        return p["scores"]
