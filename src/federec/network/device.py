"""A node's side of a federation: what it does with the server's orders, in its device folder.

What is learned is kept before the reply leaves: a round is never half applied, and can be played again if the reply
gets lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from federec.aggregators.sum import Sum
from federec.cohort.cohort import Cohort
from federec.cohort.draw import Devices, draw
from federec.cohort.update import Update
from federec.errors import UserError
from federec.evaluation.evaluator import Evaluator, Full, Sampled
from federec.evaluation.metrics import rank_metrics
from federec.evaluation.protocols import protocol
from federec.federation.channel import Channel
from federec.federation.device import learn
from federec.federation.scoring import score_global, score_own
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.network.device_folder import DeviceFolder
from federec.network.messages import Order, OtherVersion, Reply
from federec.network.parameters import Payload, start
from federec.network.settings import check_secure
from federec.runs.config import RunConfig
from federec.stages.base import Secrets
from federec.stages.dense import Dense

log = logging.getLogger("federec.device")

_USERS = 256  # scored at a time
_DRAWN = 32  # users whose samples are drawn at a time, to see which rows they need


def answer(opened: Callable[[], AbstractContextManager[DeviceFolder]], content: bytes) -> bytes:
    """The reply to an order, carried out in the device folder that `opened` opens. What goes wrong is told here, in the
    log; the server only hears that it did: the text of an error may hold what is private."""
    order = Order("query", "", 0, {}, [])  # for a failure before it is known what was asked
    try:
        order = Order.parse(content)
        with opened() as folder:
            return Work(order, folder).reply_in_clear().pack()
    except OtherVersion as other:  # the header of any reply tells the server which version this node speaks
        failed = "version"
        log.error("%s", other.told("the server", "device", "server"))
    except UserError as error:
        failed = "device"
        log.error("round %d: %s", order.round, error)
    except Exception:
        failed = "error"
        log.exception("round %d", order.round)
    return Reply(order.run, order.round, "", 0, failed=failed).pack()


class Work:
    """An order that is carried out on a node."""

    def __init__(self, order: Order, folder: DeviceFolder) -> None:
        self.order, self.folder = order, folder
        if order.labels:
            folder.grow(folder.catalogue.grown(order.labels))
        self.config = RunConfig.from_server(**order.config)
        method = self.config.build()
        assert isinstance(method, DeviceMethod)
        self.method: DeviceMethod = method
        self.link = self.config.link(method)
        seed = self.config.seed
        split = folder.split(seed)
        self.devices = Devices.of(split, protocol(self.config.protocol).close_held_out)
        method.check(self.devices)
        self.evaluator = Evaluator(split, seed)
        self.users = self.devices.ptr.diff().nonzero().flatten()  # who has nothing yet cannot learn

    def reply_in_clear(self) -> Reply:
        """What the server reads. Whatever it asks for, not every method's update may leave a node as it is."""
        if self.order.kind == "train":
            check_secure(self.method, self.link)
            if "secure-sum" in self.link.channel:
                raise UserError("the server asks for an update in the clear, though the run has the stage 'secure-sum'")
        return self.carry_out()

    def carry_out(self) -> Reply:
        """Do what was ordered."""
        if self.order.kind == "query":
            return self.reply(self.order.round)
        return self.train() if self.order.kind == "train" else self.evaluate()

    def reply(self, next_round: int, **values: Any) -> Reply:
        """With the rows that will be needed next."""
        wanted = self.link.channel.asks(self.needed(next_round), self.devices.n_items, self.secrets())
        version = self.folder.catalogue.version
        return Reply(self.order.run, self.order.round, version, len(self.users), wanted=wanted, **values)

    def needed(self, round_: int) -> Tensor:
        """Codes of the items that the users learn from in a round, and rank after it."""
        needed = torch.zeros(self.devices.n_items, dtype=torch.bool)
        for ranked in (self.evaluator.candidates.valid, self.evaluator.candidates.test):
            needed[ranked[ranked >= 0].long()] = True
        lengths = self.devices.lengths(self.users, self.method.negatives)
        for users in self.users[lengths.argsort()].split(_DRAWN):  # like lengths together: little padding
            samples = draw(self.devices, users, self.config.seed, round_, self.method.negatives)
            real = torch.arange(samples.items.shape[1]) < samples.counts[:, None]
            needed[samples.items[real].long()] = True
            if (cover := self.method.cover(users, samples, self.devices.n_items)) is not None:
                needed[cover.flatten()] = True
        return needed.nonzero().flatten()

    def start(self) -> State:
        """What every device begins with; shared are the parameters that came."""
        sizes, items = self.order.sizes, self.devices.n_items
        if sizes != sorted(sizes) or sizes[-1] != items:
            raise UserError(f"the server says that its catalogue grew to {sizes} items; here are {items}")
        state = start(self.method, sizes, len(self.devices), self.config.seed)
        state.shared = self.order.shared.shared(items)
        return state

    def train(self) -> Reply:
        """Learn, keep what is private, send the sum of the users' messages."""
        order, method = self.order, self.method
        state = self.folder.begin(order.run, order.round, self.start())
        ranks = self.evaluator.sampled()

        def observe(cohort: Cohort) -> None:
            if method.view == "own":
                ranks.add(cohort.users, partial(score_own, method, cohort, state))

        total, touched = Sum(self.devices.n_items), torch.zeros(self.devices.n_items, dtype=torch.bool)

        def deliver(update: Update, users: Tensor) -> None:
            touched[update.ids] = True
            total.add(update)

        channel, seed = self.link.channel.per_user, self.config.seed
        learned = learn(
            method, state, self.devices, self.users, seed, order.round, channel, deliver, observe, None, self.secrets
        )
        self.folder.commit(order.run, order.round, state, order.shared, self.config, order.sizes, order.keep)
        sums = {name: (float(sum_), int(count)) for name, (sum_, count) in learned.figures.items()}
        return self.reply(order.round + 1, sums=sums | metric_sums(ranks), update=self.sent(total, touched))

    def secrets(self, users: Tensor | None = None) -> Secrets:
        """Of the node, for the stages that work on what it sends; or of these users, for those that work on theirs."""
        numbers = None if users is None else self.devices.numbered(users)
        return Secrets.of(self.folder.secret, self.order.run, self.order.round, numbers)

    def sent(self, total: Sum, touched: Tensor) -> Payload:
        """The sum of the users' updates, as it leaves the node. Among decoys a node sends all rows that it fetched, so
        that those it learned from do not show."""
        channel, sends = self.link.channel.per_sender, self.method.sends()
        if "secure-sum" in channel:  # the network rounds and masks
            channel = Channel((*channel.stages[:-1], *(() if "dense" in channel else (Dense(),))))
        rows = {name: value for name, value in total.total.items() if sends[name].rows}
        ids = self.order.shared.ids if "decoys" in channel else touched.nonzero().flatten()
        ids = ids if rows else ids[:0]
        update = Update(
            self.devices.n_items,
            ids,
            torch.tensor([len(ids)]),
            {name: table[ids] for name, table in rows.items()},
            {name: value[None] for name, value in total.total.items() if name not in rows},
        )
        update, _ = channel.device(update, self.secrets())
        layers = {name: value[0] for name, value in update.layers.items()}
        return Payload(update.ids, update.rows, layers, channel.format.value_bits)

    def evaluate(self) -> Reply:
        """Rank with the state after round `keep`; where devices rank with rows that they tune, the round is played
        again from there."""
        order, method = self.order, self.method
        state = self.folder.after(order.run, order.keep, self.start())
        rankings: list[Sampled | Full] = [self.evaluator.sampled()]
        if order.full:
            rankings.append(self.evaluator.full())

        def observe(cohort: Cohort) -> None:
            for ranks in rankings:
                ranks.add(cohort.users, partial(score_own, method, cohort, state))

        if method.view == "own":
            seed, silent = self.config.seed, Channel()
            learn(method, state, self.devices, self.users, seed, order.round, silent, _drop, observe)
        else:
            for users in self.evaluator.users.split(_USERS):
                for ranks in rankings:
                    ranks.add(users, partial(score_global, method, state, users, devices=self.devices))
        sums = {"interactions": (float(len(self.evaluator.split.data)), len(self.users))}
        for ranks in rankings:
            sums |= metric_sums(ranks)
        return self.reply(order.round + 1, sums=sums)


def _drop(update: Update, users: Tensor) -> None:
    """The round is only played again to rank: nothing leaves."""


def metric_sums(ranks: Sampled | Full) -> dict[str, tuple[float, int]]:
    """Sums of the metrics over the users that are ranked, and how many these are: `valid sampled hr@10`, ..."""
    kind = "sampled" if isinstance(ranks, Sampled) else "full"
    count = len(ranks.valid)
    if not count or (isinstance(ranks, Sampled) and len(ranks.missing())):
        return {}
    return {
        f"{part} {kind} {name}": (value * count, count)
        for part, values in (("valid", ranks.valid), ("test", ranks.test))
        for name, value in rank_metrics(values).items()
    }
