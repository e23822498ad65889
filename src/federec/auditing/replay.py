"""The server's view of a run: its rounds are played again, and what the server gets in them is kept.

A run folder keeps no messages. But randomness is a pure function of (seed, round, user, draw), so the rounds can be
played again, from the start of the run or from a state that it stored, and every device sends what it sent then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from federec.auditing.reading import Seen
from federec.cohort.draw import Devices
from federec.cohort.layers import ITEMS, Params
from federec.cohort.update import Update
from federec.errors import UserError
from federec.federation.channel import Channel, Link
from federec.federation.device import Learned, learn
from federec.federation.server import receive, server_random, settle
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.runtimes.run import Run
from federec.runtimes.simulation import DeviceTrainer, make_trainer

CENTRAL = "central"
"""Noise that the server adds itself, to what it has seen without."""

Take = Callable[[Update, Tensor], None]
"""Takes the updates of a cohort as they leave the channel, and their users."""


@dataclass(frozen=True)
class Federation:
    """What plays the rounds of a run again."""

    method: DeviceMethod
    trainer: DeviceTrainer

    @staticmethod
    def of(run: Run) -> Federation:
        """That of a run; refused where it had no devices."""
        config, method = run.config, run.method
        if not isinstance(method, DeviceMethod):
            raise UserError(f"'{method.name}' is trained in one place, which has all data; audit a run on devices")
        if not method.sends():
            raise UserError(f"devices of '{method.name}' send nothing; there is nothing to audit")
        plain = config.model_copy(update={"engine": "torch", "device": "cpu"})  # kernels show no single message
        trainer = make_trainer(plain, method, config.split_of(run.data), "cpu")
        assert isinstance(trainer, DeviceTrainer)
        return Federation(method, trainer)

    @property
    def devices(self) -> Devices:
        return self.trainer.devices

    @property
    def link(self) -> Link:
        return self.trainer.stacked.link

    @property
    def seed(self) -> int:
        return self.trainer.seed

    @property
    def hidden(self) -> bool:
        """Whether the server only sees sums."""
        return self.link.channel.promise.hidden

    @property
    def in_sums(self) -> bool:
        """Whether a promised epsilon is about sums. Under central noise it is: about what the server makes of the sum,
        not about what it gets."""
        return self.hidden or self.link.channel.promise.noise == CENTRAL

    def start(self) -> State:
        """The state before the first round."""
        return State.start(self.method, self.devices.n_items, len(self.devices), self.seed)

    @staticmethod
    def copied(state: State) -> State:
        """A state of the run, for rounds that change it."""
        return State.of({name: value.cpu().numpy() for name, value in state.copy().tensors().items()})

    def play(self, state: State, round_: int, take: Take) -> tuple[Params, Params]:
        """Play a round in place. Returns the sum over devices as the server gets it, and as it uses it: with the noise
        that it adds itself, if any."""
        aggregator = self.link.aggregator(self.devices.n_items)

        def deliver(update: Update, users: Tensor) -> None:
            take(update, users)
            receive(self.method, state, aggregator, update, users)

        learned = self.send(state, self.devices, self.trainer.chosen(round_), round_, deliver)
        got = {name: value.clone() for name, value in aggregator.total.items()}
        settle(self.method, state, aggregator, self.link, learned, server_random(self.seed, round_, self.devices))
        return got, aggregator.total

    def send(self, state: State, devices: Devices, users: Tensor, round_: int, take: Take) -> Learned:
        """Users learn and send; the server does nothing."""
        return learn(self.method, state, devices, users, self.seed, round_, self.channel(state), take)

    def channel(self, state: State) -> Channel:
        """The channel as it is in a round that begins with this state."""
        return self.link.channel.now(state.server)

    def messages(self, update: Update, users: Tensor) -> Iterator[tuple[int, Seen]]:
        """What a cohort's updates say of items, user by user."""
        ends = update.counts.cumsum(0).tolist()
        whole = [update.layers[name] for name in self.tables if name in update.layers]
        for place, user in enumerate(users.tolist()):
            rows = slice(ends[place] - int(update.counts[place]), ends[place])
            parts, ids = [value[rows] for value in update.rows.values()], update.ids[rows]
            if whole:
                ids = torch.arange(update.n_items)
                parts = [layer[place].reshape(len(ids), -1) for layer in whole]
            if parts:
                yield user, Seen(ids.numpy(), torch.cat(parts, 1).double().numpy())

    def sum_of(self, got: Params, used: Params) -> Seen | None:
        """What a sum says of items: as the server gets it; where that has no tables, as it reads it. None where
        neither says anything."""
        for total in (got, used):
            if rows := [total[name].reshape(self.devices.n_items, -1) for name in self.tables if name in total]:
                return Seen(np.arange(self.devices.n_items), torch.cat(rows, 1).double().numpy(), single=False)
        return None

    @property
    def tables(self) -> list[str]:
        """What a message has for every item: its item tables; without them, layers as long as the catalogue."""
        sends = self.method.sends()
        rows = [name for name, param in sends.items() if param.rows]
        return rows or [name for name, param in sends.items() if param.shape[0] == ITEMS]
