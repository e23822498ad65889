"""The server's view of a run: its rounds are played again, and what the server gets in them is kept.

A run folder keeps no messages. But randomness is a pure function of (seed, round, user, draw), so the rounds can be
played again, from the start of the run or from a state that it stored, and every device sends what it sent then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from federec.auditing.reading import Seen
from federec.cohort.draw import Devices
from federec.cohort.layers import ITEMS, Params
from federec.cohort.update import Update
from federec.errors import UserError
from federec.evaluation.protocols import protocol
from federec.federation.channel import Link
from federec.federation.device import Learned, learn
from federec.federation.round import select
from federec.federation.server import receive, settle
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.runtimes.run import Run

Take = Callable[[Update, Tensor], None]
"""Takes the updates of a cohort as they leave the channel, and their users."""


@dataclass(frozen=True)
class Federation:
    """What plays the rounds of a run again."""

    method: DeviceMethod
    devices: Devices
    link: Link
    seed: int
    participation: float
    learners: Tensor
    """Users who have something to learn from."""

    @staticmethod
    def of(run: Run) -> Federation:
        """That of a run; refused where it had no devices."""
        config, method = run.config, run.method
        if not isinstance(method, DeviceMethod):
            raise UserError(f"'{method.name}' is trained in one place, which has all data; audit a run on devices")
        if not method.sends():
            raise UserError(f"devices of '{method.name}' send nothing; there is nothing to audit")
        devices = Devices.of(config.split_of(run.data), protocol(config.protocol).close_held_out)
        participation = config.participation or method.default_participation
        learners = devices.ptr.diff().nonzero().flatten()
        return Federation(method, devices, config.link(method), config.seed, participation, learners)

    @property
    def hidden(self) -> bool:
        """Whether the server only sees sums."""
        return self.link.channel.promise.hidden

    def start(self) -> State:
        """The state before the first round."""
        return State.start(self.method, self.devices.n_items, len(self.devices), self.seed)

    def chosen(self, round_: int) -> Tensor:
        """The users of a round."""
        return self.learners[select(len(self.learners), self.participation, self.seed, round_)]

    def play(self, state: State, round_: int, take: Take) -> tuple[Params, Params]:
        """Play a round in place. Returns the sum over devices as the server gets it, and as it uses it: with the noise
        that it adds itself, if any."""
        aggregator = self.link.aggregator(self.devices.n_items)

        def deliver(update: Update, users: Tensor) -> None:
            take(update, users)
            receive(self.method, state, aggregator, update, users)

        learned = self.send(state, self.devices, self.chosen(round_), round_, deliver)
        got = {name: value.clone() for name, value in aggregator.total.items()}
        settle(self.method, state, aggregator, self.link.channel, learned)
        return got, aggregator.total

    def send(self, state: State, devices: Devices, users: Tensor, round_: int, take: Take) -> Learned:
        """Users learn and send; the server does nothing."""
        return learn(self.method, state, devices, users, self.seed, round_, self.link.channel, take)

    def messages(self, update: Update, users: Tensor) -> Iterator[tuple[int, Seen]]:
        """What a cohort's updates say of items, user by user."""
        ends = update.counts.cumsum(0).tolist()
        tables = self._tables(update.layers)
        for place, user in enumerate(users.tolist()):
            rows = slice(ends[place] - int(update.counts[place]), ends[place])
            parts = [value[rows] for value in update.rows.values()]
            ids = update.ids[rows]
            if tables:  # layers that have a row for every item are read as item tables
                ids = torch.arange(update.n_items)
                parts = [layer[place].flatten(1) for layer in tables.values()]
            if parts:
                yield user, Seen(ids.numpy(), torch.cat(parts, 1).double().numpy())

    def sum_of(self, total: Params) -> Seen:
        """What a sum says of items."""
        names = [name for name, param in self.method.sends().items() if param.rows] or list(self._tables(total))
        rows = [total[name].flatten(1) for name in names if name in total]
        if not rows:
            return Seen(torch.arange(0).numpy(), torch.zeros(0, 1).double().numpy(), single=False)
        return Seen(torch.arange(self.devices.n_items).numpy(), torch.cat(rows, 1).double().numpy(), single=False)

    def _tables(self, layers: Params) -> Params:
        """Layers whose first dimension is the catalogue, of a method that sends no item rows."""
        sends = self.method.sends()
        if any(param.rows for param in sends.values()):
            return {}
        return {name: value for name, value in layers.items() if sends[name].shape[0] == ITEMS}
