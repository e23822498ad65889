"""A node's side of a federation: what it does with the server's orders, in its device folder.

What is learned and the reply itself are kept before the reply leaves: a round is never half applied, and where the
reply gets lost, the same bytes are sent again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from federec.aggregators.sum import Sum
from federec.cohort.cohort import Cohort
from federec.cohort.draw import Devices, draw
from federec.cohort.update import Update
from federec.data.split import Split
from federec.errors import UserError
from federec.evaluation.evaluator import Evaluator, Full, Sampled
from federec.evaluation.metrics import rank_metrics
from federec.evaluation.protocols import protocol
from federec.evaluation.selection import SampleRanks, Selection
from federec.federation.channel import Channel
from federec.federation.device import learn
from federec.federation.scoring import rank_own, score_global
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.network.catalogue import Catalogue
from federec.network.device_folder import DeviceFolder
from federec.network.hiding import LEGS, Sums
from federec.network.ledger import Answer
from federec.network.messages import Order, OtherVersion, Reply
from federec.network.parameters import Payload, start
from federec.network.policy import rho
from federec.network.settings import check_secure
from federec.network.vector import flat
from federec.runs.config import RunConfig
from federec.stages.dense import Dense
from federec.stages.randomness import Real
from federec.stages.secure_sum import SecureSum

log = logging.getLogger("federec.device")

_USERS = 256  # scored at a time on a few items
_FULL = 32  # the same on all items
_DRAWN = 32  # users whose samples are drawn at a time, to see which rows they need
Rankings = Sampled | SampleRanks | Full

_ANY = torch.tensor([-1])  # stands for rows that are not known yet


def answer(opened: Callable[[], AbstractContextManager[DeviceFolder]], content: bytes, sums: Sums) -> bytes:
    """The reply to an order, carried out in the device folder that `opened` opens. What goes wrong is told here, in the
    log; the server only hears that it did: the text of an error may hold what is private. `sums` are those in which the
    process takes part; it stays from one order to the next."""
    order = Order("query", "", 0, {}, [])  # for a failure before it is known what was asked
    try:
        order = Order.parse(content)
        with opened() as folder:
            return sums.leg(order, folder).pack() if order.kind in LEGS else Work(order, folder, sums).answer()
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
    """An order that is carried out on a node. Everything about it is checked before anything is kept."""

    def __init__(self, order: Order, folder: DeviceFolder, sums: Sums) -> None:
        self.order, self.folder, self.sums = order, folder, sums
        self.config = RunConfig.from_server(**order.config)
        method = self.config.build()
        if not isinstance(method, DeviceMethod):
            raise UserError(f"the server asks for '{method.name}', which is not a method of devices")
        self.method: DeviceMethod = method
        self.link = self.config.link(method)
        self.hosted = folder.active
        self.policy = folder.policy
        check_secure(method, self.link)
        self.catalogue = _grown(order, folder.catalogue)
        _check_shared(order, method, len(self.catalogue))

    @property
    def hidden(self) -> bool:
        """Whether what is told only leaves as part of a secure sum."""
        return "secure-sum" in self.link.channel

    @cached_property
    def cost(self) -> float | None:
        """What one message costs of the device's budget; None where its noise bounds nothing."""
        sends = self.link.channel.sends(self.method.sends(), len(self.catalogue))
        return rho(self.link.channel, sends, self.policy.cohort)

    @cached_property
    def split(self) -> Split:
        ties = self.config.ties or protocol(self.config.protocol).ties
        return self.folder.split(self.config.seed, self.catalogue, ties)

    @cached_property
    def devices(self) -> Devices:
        devices = Devices.of(self.split, protocol(self.config.protocol).close_held_out)
        self.method.check(devices)
        return devices

    @cached_property
    def evaluator(self) -> Evaluator:
        return Evaluator(self.split, self.config.seed)

    @cached_property
    def users(self) -> Tensor:
        """Those who can learn: who has nothing yet cannot."""
        return self.devices.ptr.diff().nonzero().flatten()

    def answer(self) -> bytes:
        """Do what was ordered, once: the message as it leaves, which is kept before it does."""
        order, ledger = self.order, self.folder.ledger
        kind, digest = "full" if order.full else order.kind, hashlib.sha256(order.sealed).hexdigest() + order.digest
        if (sent := ledger.answered(kind, order.run, order.round, digest)) is not None:
            return sent
        spent = ledger.spent
        if order.kind == "train":  # the round that this will be
            spent = replace(spent, rounds=spent.rounds + 1)
        self.policy.allow(self.config, self.link.channel, order.run, order.round, self.hosted, spent, self.cost)
        if order.kind == "query":
            return self.reply(order.round).pack()
        reply, state = self.train() if order.kind == "train" else (self.evaluate(), None)
        answer = Answer(order.run, order.round, digest, self.disguised(reply).pack())
        with self.folder.change():
            ledger.answered(kind, order.run, order.round, digest)  # another process may have answered meanwhile
            if len(self.catalogue) > len(self.folder.catalogue):
                self.folder.grow(self.catalogue)
            if state is not None:
                self.folder.commit(order.run, order.round, state, order.shared, self.config, order.sizes, order.keep)
            ledger.keep(kind, answer, self.cost or 0.0)
        return answer.content

    def disguised(self, reply: Reply) -> Reply:
        """What leaves of a reply."""
        if not self.hidden:
            return reply if self.policy.open(self.hosted) else replace(reply, sums={})
        sends = self.link.channel.sends(self.method.sends(), len(self.catalogue)) if self.order.kind == "train" else {}
        most = next(stage.most for stage in self.link.channel.stages if isinstance(stage, SecureSum))
        sealed = self.sums.masked(self.order, flat(reply, sends, len(self.catalogue), most))
        return replace(reply, sums={}, update=Payload.nothing(), sealed=sealed)

    def reply(self, next_round: int, **values: Any) -> Reply:
        """With the rows that will be needed next, and keys for the next secure sum."""
        channel, run = self.link.channel, self.order.run
        wanted = _ANY if not len(channel.asks(_ANY)) else channel.asks(self.needed(next_round))
        keys = self.sums.advert(self.order, self.folder) if self.hidden else b""
        version = self.catalogue.version
        return Reply(run, self.order.round, version, len(self.users), wanted=wanted[wanted >= 0], advert=keys, **values)

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
        state = start(self.method, self.order.sizes, len(self.devices), self.config.seed)
        state.shared = self.order.shared.shared(self.devices.n_items)
        return state

    def train(self) -> tuple[Reply, State]:
        """Learn: the sum of the users' messages, and the state with what is private."""
        order, method = self.order, self.method
        state = self.folder.begin(order.run, order.round, self.start())
        rankings = self.rankings() if method.view == "own" else []

        def observe(cohort: Cohort) -> None:
            for ranks in rankings:
                rank_own(ranks, method, cohort, state, _FULL)

        total, touched = Sum(self.devices.n_items), torch.zeros(self.devices.n_items, dtype=torch.bool)

        def deliver(update: Update, users: Tensor) -> None:
            touched[update.ids] = True
            total.add(update)

        channel, seed, users = self.link.channel.per_user, self.config.seed, self.users
        learned = learn(
            method,
            state,
            self.devices,
            users,
            seed,
            order.round,
            channel,
            deliver,
            observe,
            random=Real(),
            sum_only=True,
        )
        sums = {name: (float(sum_), int(count)) for name, (sum_, count) in learned.figures.items()}
        for ranks in rankings:
            sums |= metric_sums(ranks)
        return self.reply(order.round + 1, sums=sums, update=self.sent(total, touched)), state

    def rankings(self) -> list[Rankings]:
        """The rankings of a round. Against all items only where the server sent the rows of all."""
        rankings: list[Rankings] = [self.evaluator.sampled()]
        if not self.order.shared.rows or len(self.order.shared.ids) == len(self.catalogue):
            samples, rounds = float(self.devices.lengths(self.users, self.method.negatives).sum()), self.config.rounds
            rankings += Selection(self.evaluator, self.config.seed, samples, rounds or 1).rankings(rounds or 1)
        return rankings

    def sent(self, total: Sum, touched: Tensor) -> Payload:
        """The sum of the users' updates, after the stages that work on it."""
        channel = self.link.channel.per_sender
        sends = self.link.channel.per_user.sends(self.method.sends(), self.devices.n_items)
        if self.hidden:  # which rounds and masks whole tables, see `disguised`
            channel = Channel((*channel.stages[:-1], *(() if "dense" in channel else (Dense(),))))
        rows = {name: value for name, value in total.total.items() if sends[name].rows}
        ids = touched.nonzero().flatten() if rows else _ANY[:0]
        update = Update(
            self.devices.n_items,
            ids,
            torch.tensor([len(ids)]),
            {name: table[ids] for name, table in rows.items()},
            {name: value[None] for name, value in total.total.items() if name not in rows},
        )
        update, _ = channel.device(update, Real())
        layers = {name: value[0] for name, value in update.layers.items()}
        return Payload(update.ids, update.rows, layers, channel.format.value_bits)

    def evaluate(self) -> Reply:
        """Rank with the state after round `keep`; where devices rank with rows that they tune, the round is played
        again from there."""
        order, method = self.order, self.method
        state = self.folder.after(order.run, order.keep, self.start())
        rankings = self.rankings()
        if order.full:
            rankings = [self.evaluator.full()]
            if not self.hidden:  # else told in the round already; in two sums they would differ by one device
                rankings.append(self.evaluator.sampled())

        def observe(cohort: Cohort) -> None:
            for ranks in rankings:
                rank_own(ranks, method, cohort, state, _FULL)

        if method.view == "own":
            seed, silent = self.config.seed, Channel()
            learn(method, state, self.devices, self.users, seed, order.round, silent, _drop, observe)
        else:
            for ranks in rankings:
                ranked = self.evaluator.users if ranks.whole is None else ranks.whole.nonzero().flatten()
                for users in ranked.split(_USERS if ranks.whole is None else _FULL):
                    ranks.add(users, partial(score_global, method, state, users, devices=self.devices))
        sums: dict[str, tuple[float, int]] = {}
        if order.full:  # not in every round: it never changes, so sums that differ by one device would tell it
            sums["interactions"] = float(len(self.evaluator.split.data)), len(self.users)
        for ranks in rankings:
            sums |= metric_sums(ranks)
        if order.full and self.hidden:  # these were told in the round, too
            sums = {name: told for name, told in sums.items() if not name.startswith("valid ")}
        return self.reply(order.round + 1, sums=sums)


def _grown(order: Order, known: Catalogue) -> Catalogue:
    """The catalogue that an order is about: the device's own with the new items, and no other."""
    grown, sizes = known.grown(order.labels), order.sizes
    if len(grown) != len(known) + len(order.labels):
        raise UserError("the server names items as new that are not")
    if sizes != sorted(set(sizes)) or sizes[-1] < len(known) or (order.kind != "query" and sizes[-1] != len(grown)):
        raise UserError(f"the server says that its catalogue grew to {sizes[-5:]} items; here are {len(grown)}")
    return grown


def _check_shared(order: Order, method: DeviceMethod, n_items: int) -> None:
    """Refuse shared parameters that are not the method's, or not numbers."""
    if order.kind == "query":
        return
    sent, params = order.shared, method.shared()
    shapes = {name: ((len(sent.ids),) if param.rows else ()) + param.sized(n_items) for name, param in params.items()}
    values = sent.rows | sent.layers
    if {name: tuple(value.shape) for name, value in values.items()} != shapes:
        raise UserError("the server sends other parameters than the method has")
    if {name for name, param in params.items() if param.rows} != sent.rows.keys():
        raise UserError("the server sends other tables than the method has")
    ids = sent.ids
    if len(ids) and (int(ids[0]) < 0 or int(ids[-1]) >= n_items or bool((ids.diff() <= 0).any())):
        raise UserError("the server sends rows of items that are not there")
    if not all(value.dtype == torch.float32 and bool(value.isfinite().all()) for value in values.values()):
        raise UserError("the server sends parameters that are not numbers")


def _drop(update: Update, users: Tensor) -> None:
    """The round is only played again to rank: nothing leaves."""


def metric_sums(ranks: Rankings) -> dict[str, tuple[float, int]]:
    """Sums of the metrics over the users that are ranked, and how many these are: `valid sampled hr@10`, ..."""
    kind = "sampled" if isinstance(ranks, Sampled) else "full"
    count = len(ranks.valid)
    if not count or (not isinstance(ranks, Full) and len(ranks.missing())):
        return {}
    parts = {"valid": ranks.valid} | ({} if isinstance(ranks, SampleRanks) else {"test": ranks.test})
    return {
        f"{part} {kind} {name}": (value * count, count)
        for part, values in parts.items()
        for name, value in rank_metrics(values).items()
    }
