"""What all rounds that a CPU kernel plays have in common: users are dealt out to threads, changes are summed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federec.cohort.draw import Devices
from federec.cohort.layers import Params
from federec.cohort.store import RowStore
from federec.federation.channel import Link
from federec.federation.device import Learned
from federec.federation.server import RoundReport, Sum, server_random, settle
from federec.federation.state import State
from federec.kernels.cpu import Emphasis, Histories, Noise, Outcome, Players, Thread, floats
from federec.methods import forms
from federec.methods.base import LOSS, DeviceMethod
from federec.stages.base import Format
from federec.stages.noise import quantiles

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


class RoundInputs(NamedTuple):
    """What a round is a function of."""

    method: DeviceMethod
    state: State
    devices: Devices
    seed: int
    round: int
    link: Link


class FusedRound:
    """One round, a few users at a time. A subclass drives the kernel of one form."""

    layers: tuple[str, ...] = ()
    """Shared layers that devices change."""
    total: Floats
    """[threads, M, dim] each thread's sum of the devices' changes of item rows."""
    layer_total: Floats
    """[threads, values] the same of all layers."""

    def __init__(self, inputs: RoundInputs) -> None:
        self.method, self.state, self.devices, self.seed, self.round, self.link = inputs
        self.threads = torch.get_num_threads()
        self.loss = np.zeros((self.threads, 2))
        """Each thread's sum of losses, and how many."""
        self.layer_total = np.zeros((self.threads, 0), np.float32)
        self.sent: list[Integers] = []
        self.users: list[Tensor] = []
        """Who has played."""

    def play(self, users: Tensor, ask: Tensor, judges: Tensor | None = None) -> Tensor:
        """These users learn; returns the scores of the items `ask` [C, K], each with the user's own rows, by its own
        weights or those of `judges` [C, dim + 1]."""
        # Longest first, dealt out to the threads in turn: all end at about the same time.
        order = self.devices.lengths(users, self.method.negatives).argsort(descending=True, stable=True)
        players = Players(
            users=users[order].numpy(),
            keys=self.devices.keys(self.seed, self.round, users[order]).numpy().view(np.uint64),
            ask=ask.int()[order].numpy(),
            judges=np.zeros((0, 0), np.float32) if judges is None else judges[order].numpy(),
        )
        scored = np.zeros(ask.shape, np.float32)
        sent = np.zeros((len(users), 3 + len(self.layers)), np.int64)
        sums = zip(self.total, self.layer_total, self.loss, strict=True)
        self.learn(players, [Outcome(scored, sent, *each) for each in sums])
        self.sent.append(sent)
        self.users.append(users)
        scores = torch.empty(ask.shape)
        scores[order] = torch.from_numpy(scored)
        return scores

    def learn(self, players: Players, outcomes: list[Outcome]) -> None:
        """Run the kernel in each thread, which has an outcome of its own."""
        raise NotImplementedError(f"{type(self).__name__}.learn")

    def most(self, users: Integers) -> int:
        """The most samples that one of these users draws. The longest comes first."""
        return int(self.devices.lengths(torch.from_numpy(users[:1]), self.method.negatives).sum())

    def reserve(self, store: RowStore, users: Integers) -> None:
        """Make space in a store for all rows that the users will touch."""
        chosen, n_items = torch.from_numpy(users), self.devices.n_items
        drawn = store.held[chosen] + self.devices.lengths(chosen, self.method.negatives)
        store.reserve(chosen, drawn.clamp(max=n_items))

    def change(self) -> Params:
        """The devices' changes of shared item rows and layers, summed."""
        raise NotImplementedError(f"{type(self).__name__}.change")

    def notes(self) -> Params:
        """Figures besides the loss: each one's sum over devices, and their number."""
        return {}

    def traffic(self, total: Params) -> tuple[Tensor, Tensor]:
        """Bytes that each device sends and fetches; `total` is the sum of what they send."""
        n_items, format_ = self.devices.n_items, self.link.channel.format
        held, rows, values, *layers = torch.from_numpy(np.concatenate(self.sent)).unbind(1)
        width = sum(total[name].shape[1] for name in total if name not in self.layers)
        up, down = format_.changes(rows, values, width, n_items), fetched(held, width, n_items, format_)
        for filled, name in zip(layers, self.layers, strict=True):
            size = total[name].numel()
            up, down = up + format_.layer(filled, size), down + Format().layer(torch.full_like(filled, size), size)
        return up, down

    def finish(self, sum_: Sum = list) -> RoundReport:
        """The server settles the round."""
        n_items, total = self.devices.n_items, self.change()
        up, down = self.traffic(total)
        figures = {LOSS: torch.from_numpy(self.loss.sum(0)), **self.notes()}
        learned = Learned(int(up.sum()), int(down.sum()), figures)
        aggregator = self.link.aggregator(n_items)
        aggregator.merge(total, len(up))
        random = server_random(self.seed, self.round, self.devices)
        return settle(self.method, self.state, aggregator, self.link, learned, random, sum_)


def fetched(held: Tensor, width: int, n_items: int, format_: Format) -> Tensor:
    """Bytes of the rows that devices fetch: those they hold, or all where they send all."""
    return Format("all" if format_.rows == "all" else "changed").table(held, width, n_items)


def on_threads(count: int, kernel: Callable[[Thread], None]) -> None:
    """Call a kernel, which lets go of Python's lock, once in each of `count` threads."""
    if count == 1:
        return kernel(Thread(0, 1))
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(kernel, [Thread(first, count) for first in range(count)]))


class Emphasising:
    """What kernels need to let new positives weigh more."""

    def __init__(self, form: forms.Emphasis | None, devices: Devices) -> None:
        self.form, self.ptr, self.items = form, devices.distinct_ptr, devices.distinct
        longest = int(self.ptr.diff().max()) if form else 0
        age = torch.arange(longest)
        self.weights = 0.5 ** (age / form.half_life) + form.least if form else age

    def arrays(self, rows: int) -> Emphasis | None:
        """For one thread, whose devices have at most `rows` rows; None where all samples weigh the same."""
        if self.form is None:
            return None
        return Emphasis(self.ptr.numpy(), self.items.numpy(), self.weights.numpy(), floats(rows))


def noise_of(scale: float) -> Noise | None:
    """Laplace noise on what is sent; None where there is none, so that its code is not compiled."""
    return Noise(np.float32(scale), quantiles().numpy()) if scale else None


def histories(devices: Devices) -> Histories:
    """What devices learn from, for a kernel."""
    return Histories(*(part.numpy() for part in (devices.ptr, devices.train, devices.closed_ptr, devices.gaps)))
