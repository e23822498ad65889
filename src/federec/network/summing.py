"""The server's side of a secure sum: its legs, one after the other, with the nodes that are left."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from federec.network.exchange import Exchange
from federec.network.guard import Rejection
from federec.network.messages import Kind, Order, Reply
from federec.network.secure_sum import Collector, bits
from federec.stages.secure_sum import STEPS

Welcome = Callable[[int, Reply], Rejection | None]
"""Takes in what a node told besides, such as its next keys; or says what is wrong with it."""


def summed(
    exchange: Exchange,
    orders: Mapping[int, Order],
    adverts: Mapping[int, bytes],
    root: bytes,
    users: int,
    length: int,
    minimum: int,
    name: str,
    welcome: Welcome,
) -> tuple[NDArray[np.int64], list[int]] | None:
    """The sum of the vectors with which nodes answer their orders, and the nodes in it; None where too few were left.
    `users` are those of all the nodes at most; `name` is that of the sum."""
    first = next(iter(orders.values()))
    collector = Collector(secrets.token_bytes(16), adverts, bits(users, STEPS), length, f"{first.run}, {name}", root)

    def ask(kind: Kind, sealed: Mapping[int, bytes]) -> dict[int, bytes]:
        """One leg; what each node replied."""
        for node, reason in collector.refused.items():
            if node not in told:
                exchange.refuse(node, first.round, Rejection("malformed", reason[:200]))
        told.update(collector.refused)
        if kind == first.kind:
            sent = {node: replace(orders[node], sealed=content) for node, content in sealed.items()}
        else:
            leg = Order(kind, first.run, first.round, {}, first.sizes)
            sent = {node: replace(leg, sealed=content) for node, content in sealed.items()}
        replies = exchange.ask(sent, fault, minimum)
        return {node: reply.sealed for node, reply in replies.items()}

    def fault(node: int, order: Order, reply: Reply, replies: Mapping[int, Reply]) -> Rejection | None:
        if (reply.run, reply.round) != (order.run, order.round):
            return Rejection("replay", f"it is for round {reply.round}")
        if len(reply.update.ids) or reply.update.rows or reply.update.layers or reply.sums or len(reply.wanted):
            return Rejection("malformed", "it tells more than its part of a secure sum")
        return welcome(node, reply)

    told: dict[int, str] = {}
    delivered = collector.shares(ask("share", collector.rosters()))
    arrived = collector.inputs(ask(first.kind, delivered))
    if collector.sparse:
        arrived = collector.agreed(ask("agree", arrived))
    found = collector.unmasked(ask("unmask", arrived))
    ask("unmask", {})  # for those that were refused last
    return found
