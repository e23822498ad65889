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
from functools import cached_property
from typing import Any

import numpy as np

from federec.data.split import Split
from federec.errors import UserError
from federec.evaluation.protocols import protocol
from federec.methods.base import DeviceMethod
from federec.network.catalogue import Catalogue
from federec.network.device_folder import DeviceFolder, Private
from federec.network.engines import Engine, Task, engine_of
from federec.network.hiding import LEGS, Sums
from federec.network.ledger import Answer
from federec.network.messages import Order, OtherVersion, Reply
from federec.network.parameters import Payload
from federec.network.policy import check_secure, rho
from federec.network.vector import flat
from federec.runs.config import RunConfig
from federec.stages.secure_sum import SecureSum

log = logging.getLogger("federec.device")


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
        self.channel = self.config.link(method).channel
        self.hosted = folder.active
        self.policy = folder.policy
        check_secure(method, self.channel)
        self.catalogue = _grown(order, folder.catalogue)
        _check_shared(order, method, len(self.catalogue))

    @property
    def hidden(self) -> bool:
        """Whether what is told only leaves as part of a secure sum."""
        return "secure-sum" in self.channel

    @cached_property
    def cost(self) -> float | None:
        """What one message costs of the device's budget; None where its noise bounds nothing."""
        sends = self.channel.sends(self.method.sends(), len(self.catalogue))
        return rho(self.channel, sends, self.policy.cohort)

    @cached_property
    def split(self) -> Split:
        ties = self.config.ties or protocol(self.config.protocol).ties
        return self.folder.split(self.config.seed, self.catalogue, ties)

    @cached_property
    def engine(self) -> Engine:
        """What learns and ranks here."""
        order = self.order
        return engine_of(Task(self.config, self.method, self.channel, self.split, order.sizes, order.shared))

    def answer(self) -> bytes:
        """Do what was ordered, once: the message as it leaves, which is kept before it does."""
        order, ledger = self.order, self.folder.ledger
        kind, digest = "full" if order.full else order.kind, hashlib.sha256(order.sealed).hexdigest() + order.digest
        if (sent := ledger.answered(kind, order.run, order.round, digest)) is not None:
            return sent
        spent = ledger.spent
        if order.kind == "train":  # the round that this will be
            spent = replace(spent, rounds=spent.rounds + 1)
        self.policy.allow(self.config, self.channel, order.run, order.round, self.hosted, spent, self.cost)
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
        sends = self.channel.sends(self.method.sends(), len(self.catalogue)) if self.order.kind == "train" else {}
        most = next(stage.most for stage in self.channel.stages if isinstance(stage, SecureSum))
        sealed = self.sums.masked(self.order, flat(reply, sends, len(self.catalogue), most))
        return replace(reply, sums={}, update=Payload.nothing(), sealed=sealed)

    def reply(self, next_round: int, **values: Any) -> Reply:
        """With the rows that will be needed next, and keys for the next secure sum."""
        run, users = self.order.run, len(self.engine.users)
        wanted = np.zeros(0, np.int64) if self.channel.fetches_all else self.engine.needed(next_round)
        keys = self.sums.advert(self.order, self.folder) if self.hidden else b""
        return Reply(run, self.order.round, self.catalogue.version, users, wanted=wanted, advert=keys, **values)

    def train(self) -> tuple[Reply, Private]:
        """Learn: the sum of the users' messages, and the state with what is private."""
        order = self.order
        state = self.folder.begin(order.run, order.round, self.engine.start())
        sums, update = self.engine.train(state, order.round)
        return self.reply(order.round + 1, sums=sums, update=update), state

    def evaluate(self) -> Reply:
        """Rank with the state after round `keep`; where devices rank with rows that they tune, the round is played
        again from there."""
        order = self.order
        state = self.folder.after(order.run, order.keep, self.engine.start())
        sums = self.engine.evaluate(state, order.round, order.full)
        if order.full:  # not in every round: it never changes, so sums that differ by one device would tell it
            sums["interactions"] = float(len(self.split.data)), len(self.engine.users)
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
    values = {**sent.rows, **sent.layers}
    if {name: value.shape for name, value in values.items()} != shapes:
        raise UserError("the server sends other parameters than the method has")
    if {name for name, param in params.items() if param.rows} != sent.rows.keys():
        raise UserError("the server sends other tables than the method has")
    ids = sent.ids
    if len(ids) and (int(ids[0]) < 0 or int(ids[-1]) >= n_items or bool((np.diff(ids) <= 0).any())):
        raise UserError("the server sends rows of items that are not there")
    if not all(value.dtype == np.float32 and bool(np.isfinite(value).all()) for value in values.values()):
        raise UserError("the server sends parameters that are not numbers")
