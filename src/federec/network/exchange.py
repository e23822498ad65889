"""The server's side of all messages: orders to nodes and their replies, with a deadline. A reply that is not as it
should be is refused, counted and logged."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from federec.network.events import Events
from federec.network.guard import Rejection
from federec.network.messages import Order, OtherVersion, Reply, parts
from federec.network.settings import FederationSettings
from federec.network.transport import Delivery, Transport

REST, MOST_REST = 2, 64
"""Rounds for which a node that failed, or answered late, is skipped: twice as many each time, up to the second."""
_FIRST = 3  # times the usual grace, for nodes that nobody waits for: they may just be starting

Fault = Callable[[int, Order, Reply, Mapping[int, Reply]], Rejection | None]
"""What is wrong with a node's reply to an order, given the replies that were taken in before it."""


class Exchange:
    """Sends, waits and counts."""

    poll = 0.25
    """Seconds between looks for replies."""

    def __init__(self, transport: Transport, path: Path, settings: FederationSettings, events: Events) -> None:
        self.transport, self.path, self.settings, self.events = transport, path, settings, events
        self.resting: dict[int, int] = {}
        """Node -> the round from which it is asked again."""
        self.skipped: dict[int, int] = {}
        """Node -> for how many rounds it was skipped last."""
        self.late: dict[str, tuple[int, int]] = {}
        """Tickets of messages whose time is over -> round, node."""
        self.bytes = {"up": 0, "down": 0}
        """Of all messages so far."""
        self.received = 0

    def rests(self, node: int, round_: int) -> bool:
        """Whether a node is skipped in a round."""
        return self.resting.get(node, 0) > round_

    def forget(self, there: Collection[int]) -> None:
        """A node that went away and comes back is asked at once."""
        self.resting = {node: round_ for node, round_ in self.resting.items() if node in there}

    def ask(self, orders: Mapping[int, Order], fault: Fault, enough: int = 1) -> dict[int, Reply]:
        """Send orders, all of one kind; the replies that come in time and have no fault. Time is over at the deadline;
        or, where `enough` have replied and two thirds have answered in some way, when the rest had as long again. Where
        nobody is needed, it is over soon."""
        if not orders:
            return {}
        order = next(iter(orders.values()))
        kind, round_ = order.kind, order.round
        messages = {node: order.pack() for node, order in orders.items()}
        for content in messages.values():
            self.count("down", len(content))
        pending = self.transport.send(messages, kind, round_, self.settings.deadline)
        self.events.say("asked", kind=kind, round=round_, devices=len(pending))
        began, closing = time.monotonic(), False
        deadline = began + self.settings.deadline
        replies: dict[int, Reply] = {}
        while pending and time.monotonic() < deadline:
            for delivery in self.transport.collect([*pending, *self.late]):
                if delivery.ticket in self.late:
                    self.took(delivery)
                    number, node = self.late.pop(delivery.ticket)
                    self.refuse(node, number, Rejection("late", f"it came in round {round_}"))
                    continue
                if delivery.ticket not in pending:  # a network may deliver twice: the first counts
                    continue
                self.took(delivery)
                node = pending.pop(delivery.ticket)
                reply = read(node, delivery)
                wrong = reply if isinstance(reply, Rejection) else fault(node, orders[node], reply, replies)
                if wrong is not None:
                    self.refuse(node, round_, wrong)
                elif isinstance(reply, Reply):
                    replies[node] = reply
                    self.events.say("reply", kind=kind, round=round_, device=str(node), users=reply.devices)
            if not closing and len(replies) >= enough and (not enough or 3 * len(pending) <= len(orders)):
                took, closing = time.monotonic() - began, True
                grace = self.settings.grace if enough else _FIRST * self.settings.grace
                deadline = min(deadline, began + took + max(grace, took))
            if pending:
                time.sleep(self.poll)
        for ticket, node in pending.items():
            self.late[ticket] = round_, node
            self.missed(node, kind, round_)
        return replies

    def missed(self, node: int, kind: str, round_: int) -> None:
        """Count and log that a reply did not come."""
        self.rest(node, round_)
        self.events.add("federec_missing_total")
        self.events.say("missing", kind=kind, round=round_, device=str(node))

    def refuse(self, node: int, round_: int, why: Rejection) -> None:
        """Count and log."""
        self.rest(node, round_)
        self.events.add("federec_rejects_total", reason=why.reason)
        self.events.say("rejected", round=round_, device=str(node), reason=why.reason, detail=why.detail)

    def rest(self, node: int, round_: int) -> None:
        """Skip a node for a while; twice as long as the last time, unless it was good in a whole round since then."""
        was_good = round_ > self.resting.get(node, 0)
        self.skipped[node] = REST if was_good else min(MOST_REST, 2 * self.skipped[node])
        self.resting[node] = round_ + 1 + self.skipped[node]

    def count(self, way: str, size: int) -> None:
        """Add up bytes."""
        self.bytes[way] += size
        self.events.add("federec_bytes_total", size, direction=way)

    def took(self, delivery: Delivery) -> None:
        """Count what came, and record it where that is asked for."""
        if delivery.content is None:
            return
        self.count("up", len(delivery.content))
        try:
            self.record(parts(delivery.content))
        except ValueError:
            self.record([delivery.content])

    def record(self, received: Iterable[bytes]) -> None:
        """Keep a message as it came, its parts in files of their own, where that is asked for."""
        if not self.settings.record:
            return
        folder = self.path / "received"
        folder.mkdir(exist_ok=True)
        for number, part in enumerate(received):
            (folder / f"{self.received:06d}-{number}").write_bytes(part)
        self.received += 1


def read(node: int, delivery: Delivery) -> Reply | Rejection:
    """A reply, or why there is none."""
    if delivery.content is None:
        return Rejection("failed", delivery.error[:200])
    try:
        reply = Reply.parse(delivery.content)
    except OtherVersion as other:
        return Rejection("version", other.told(f"device {node}", "server", "device"))
    except ValueError as error:
        return Rejection("malformed", str(error))
    if reply.failed:
        return Rejection("failed", "the device could not or would not do it; its own log says why")
    return reply
