"""Rounds of methods whose devices send sums over pairs of their items, by a CPU kernel: the same numbers as
`federation.round.play`, without a table for any single device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from federec.cohort.draw import Devices
from federec.federation.device import Learned
from federec.federation.fused_base import RoundInputs
from federec.federation.scoring import score_global
from federec.federation.server import RoundReport, Sum, server_random, settle
from federec.federation.state import State
from federec.federation.threads import on_threads
from federec.kernels import pairs
from federec.kernels.cpu import Parts
from federec.methods.base import DeviceMethod
from federec.methods.forms import DecayedPairs


class PairsRound:
    """One round. Devices rank when it is over: `play` scores nothing."""

    rank = None

    def __init__(self, form: DecayedPairs, inputs: RoundInputs) -> None:
        self.form, self.inputs = form, inputs
        self.names, n_items = form.parts(inputs.round), inputs.devices.n_items
        self.total = np.zeros((len(self.names), n_items, n_items), np.float32)
        self.users: list[Tensor] = []
        """Who has played."""

    def play(self, users: Tensor, ask: Tensor, judges: Tensor | None = None) -> Tensor:
        self.users.append(users)
        if self.names:
            sequences = sequences_of(self.inputs.devices, users)
            longest = int((sequences.end - sequences.begin).max(initial=1))
            tables = pairs.Tables(*(table.numpy() for table in self.form.tables(self.inputs.round, longest)))
            n_items, total = self.total.shape[1], self.total

            def add(owned: Parts) -> None:
                pairs.add_pairs(owned, np.zeros((n_items, len(total))), tables, sequences, total)

            on_threads(np.arange(n_items + 1), add)
        return torch.zeros(ask.shape)

    def finish(self, sum_: Sum = list) -> RoundReport:
        method, state, devices, seed, round_, link = self.inputs
        users = torch.cat(self.users)
        own = devices.distinct_ptr[users + 1] - devices.distinct_ptr[users]
        up, down = self.form.traffic(round_, own, devices.n_items)
        up = up * link.channel.format.value_bits // 32
        aggregator = link.aggregator(devices.n_items)
        aggregator.merge({name: torch.from_numpy(self.total[part]) for part, name in enumerate(self.names)}, len(users))
        learned, random = Learned(int(up.sum()), int(down.sum())), server_random(seed, round_, devices)
        return settle(method, state, aggregator, link, learned, random, sum_)


def sequences_of(devices: Devices, users: Tensor) -> pairs.Sequences:
    """The users' histories, for the kernel."""
    start = devices.distinct_ptr[users].numpy()
    counts = devices.distinct_ptr[users + 1].numpy() - start
    end = np.cumsum(counts)
    place = np.arange(counts.sum()) + np.repeat(start - (end - counts), counts)
    items = devices.distinct.numpy()[place]
    occurrences = np.bincount(items, minlength=devices.n_items)
    return pairs.Sequences(
        items=items,
        begin=np.repeat(end - counts, counts),
        end=np.repeat(end, counts),
        places=np.argsort(items, kind="stable"),
        ptr=np.concatenate([[0], np.cumsum(occurrences)]),
    )


def pairs_scores(
    form: DecayedPairs, method: DeviceMethod, state: State, devices: Devices, users: Tensor, items: Tensor
) -> Tensor:
    """Scores [C, K] of items [C, K], as in torch: one product of matrices, which no kernel does faster."""
    return score_global(method, state, users, items, devices)
