"""Rounds of methods whose messages torch adds up: a CPU kernel adds up the noise on them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from federec import streams
from federec.cohort.draw import Devices
from federec.cohort.update import Update
from federec.federation.channel import Channel
from federec.federation.device import Learned, learn
from federec.federation.fused_base import Floats, RoundInputs
from federec.federation.scoring import score_global
from federec.federation.server import RoundReport, Sum, server_random, settle
from federec.federation.state import State
from federec.federation.threads import in_slices
from federec.kernels.noise import BLOCK, laplace_sum, make_products
from federec.methods.base import DeviceMethod
from federec.methods.forms import NextItem, SummedMessages


class SummedRound:
    """A round of such a method. Devices rank when it is over: `play` scores nothing."""

    rank = None

    def __init__(self, form: SummedMessages | NextItem, inputs: RoundInputs) -> None:
        self.form, self.inputs = form, inputs
        self.aggregator = inputs.link.begin(inputs.devices.n_items)
        self.learned = Learned()
        self.adds_up = inputs.method.adds_up(inputs.round)
        """Otherwise noise is drawn for each message."""
        self.users: list[Tensor] = []
        """Who has played."""

    def play(self, users: Tensor, ask: Tensor, judges: Tensor | None = None) -> Tensor:
        method, state, devices, seed, round_, link = self.inputs
        if not len(users) and self.form.laplace:
            none = np.zeros(0, np.uint64), 0, np.float32(0), np.zeros(0, np.float32)
            laplace_sum(make_products(), *none)  # compile it, or load it
        channel = Channel() if self.adds_up else link.channel.now(state.server)
        new = learn(method, state, devices, users, seed, round_, channel, self._deliver, sum_only=True)
        self.learned = self.learned.with_more(new)
        self.users.append(users)
        return torch.zeros(ask.shape)

    def _deliver(self, update: Update, users: Tensor) -> None:
        self.aggregator.add(update)

    def finish(self, sum_: Sum = list) -> RoundReport:
        """The server settles the round."""
        method, state, devices, seed, round_, link = self.inputs
        if self.adds_up and self.form.laplace:
            self._add_noise()
        random = server_random(seed, round_, devices)
        return settle(method, state, self.aggregator, link, self.learned, random, sum_)

    def _add_noise(self) -> None:
        """What `stages.noise.drawn` gives for each device, summed."""
        method, _, devices, seed, round_, _ = self.inputs
        keys = devices.keys(seed, round_, torch.cat(self.users)).numpy().view(np.uint64)
        total, scale = self.aggregator.total, np.float32(self.form.laplace)
        for place, name in enumerate(name for name in method.sends() if name in total):
            noise: Floats = np.empty(total[name].numel(), np.float32)
            first, blocks = streams.LAPLACE + (place << 36), -(-len(noise) // (4 * BLOCK))

            def draw(some: slice, noise: Floats = noise, first: int = first) -> None:
                part = noise[4 * BLOCK * some.start : 4 * BLOCK * some.stop]
                laplace_sum(make_products(), keys, first + BLOCK * some.start, scale, part)

            in_slices(blocks, draw)
            total[name] = total[name] + torch.from_numpy(noise).view_as(total[name])


def summed_scores(
    form: SummedMessages, method: DeviceMethod, state: State, devices: Devices, users: Tensor, items: Tensor
) -> Tensor:
    """Scores [C, K] of items [C, K], as in torch: products of matrices, which no kernel does faster."""
    return score_global(method, state, users, items, devices)
