"""Orders to devices and their replies, with a deadline. What is not as it should be is refused, counted and logged."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from flwr.app import Message
from flwr.serverapp import Grid

from federec.network.events import Events
from federec.network.guard import Rejection
from federec.network.messages import Order, Reply, size
from federec.network.settings import FederationSettings

POLL = 0.25
"""Seconds between looks for replies."""
REST = 2
"""Rounds for which a device that failed, or was late, is left in peace."""

_GRACE = 10.0  # seconds for which Flower keeps a message longer than we wait for its reply

Fault = Callable[[int, Order, Reply, Mapping[int, Reply]], Rejection | None]
"""What is wrong with a device's reply to an order, given those that were taken in before it."""


class Exchange:
    """The server's end of all messages."""

    def __init__(self, grid: Grid, path: Path, settings: FederationSettings, events: Events) -> None:
        self.grid, self.path, self.settings, self.events = grid, path, settings, events
        self.resting: dict[int, int] = {}
        """Device -> the round from which it is asked again."""
        self.late: dict[str, tuple[int, int]] = {}
        """Messages whose time is over -> round, device."""
        self.bytes = {"up": 0, "down": 0}
        """Of messages so far, inside HTTP."""
        self.received = 0

    def rests(self, node: int, round_: int) -> bool:
        """Whether a device is left in peace in a round."""
        return self.resting.get(node, 0) > round_

    def forget(self, there: Collection[int]) -> None:
        """Who went away and comes back starts afresh."""
        self.resting = {node: round_ for node, round_ in self.resting.items() if node in there}

    def ask(self, orders: Mapping[int, Order], fault: Fault) -> dict[int, Reply]:
        """Send orders, all of one kind; the replies that come by the deadline and have no fault."""
        if not orders:
            return {}
        order = next(iter(orders.values()))
        kind, round_ = order.kind, order.round
        messages = [
            Message(order.pack(), node, kind, group_id=str(round_), ttl=self.settings.deadline + _GRACE)
            for node, order in orders.items()
        ]
        for message in messages:
            self.count("down", message)
        names = self.grid.push_messages(messages)
        pending = {str(name): node for name, node in zip(names, orders, strict=True) if name}
        self.events.say("asked", kind=kind, round=round_, devices=len(pending))
        deadline = time.monotonic() + self.settings.deadline
        replies: dict[int, Reply] = {}
        while pending and time.monotonic() < deadline:
            for message in self.grid.pull_messages([*pending, *self.late]):
                name = message.metadata.reply_to_message_id
                if message.has_content():
                    self.count("up", message)
                    self.record(message)
                if name in self.late:
                    number, node = self.late.pop(name)
                    self.refuse(node, number, Rejection("late", f"it came in round {round_}"))
                    continue
                node = pending.pop(name)
                reply = read(message)
                wrong = reply if isinstance(reply, Rejection) else fault(node, orders[node], reply, replies)
                if wrong is not None:
                    self.refuse(node, round_, wrong)
                elif isinstance(reply, Reply):
                    replies[node] = reply
                    self.events.say("reply", kind=kind, round=round_, device=str(node), users=reply.devices)
            if pending:
                time.sleep(POLL)
        for name, node in pending.items():
            self.late[name] = round_, node
            self.missed(node, kind, round_)
        return replies

    def missed(self, node: int, kind: str, round_: int) -> None:
        """Count and log that a reply did not come."""
        self.resting[node] = round_ + 1 + REST
        self.events.add("federec_missing_total")
        self.events.say("missing", kind=kind, round=round_, device=str(node))

    def refuse(self, node: int, round_: int, why: Rejection) -> None:
        """Count and log."""
        self.resting[node] = round_ + 1 + REST
        self.events.add("federec_rejects_total", reason=why.reason)
        self.events.say("rejected", round=round_, device=str(node), reason=why.reason, detail=why.detail)

    def count(self, way: str, message: Message) -> None:
        """Add up bytes."""
        self.bytes[way] += (more := size(message))
        self.events.add("federec_bytes_total", more, direction=way)

    def record(self, message: Message) -> None:
        """Keep what came as it came, where that is asked for."""
        if not self.settings.record:
            return
        folder = self.path / "received"
        folder.mkdir(exist_ok=True)
        parts = [array.data for arrays in message.content.array_records.values() for array in arrays.values()]
        for record in message.content.config_records.values():
            for entry in record.values():
                values = entry if isinstance(entry, list) else [entry]
                parts.append(b"\n".join(v if isinstance(v, bytes) else str(v).encode() for v in values))
        for place, part in enumerate(parts):
            (folder / f"{self.received:06d}-{place}").write_bytes(part)
        self.received += 1


def read(message: Message) -> Reply | Rejection:
    """A reply, or why it is none."""
    if message.has_error():
        return Rejection("failed", f"Flower: {message.error.reason or message.error.code}"[:200])
    try:
        reply = Reply.read(message.content)
    except ValueError as error:
        return Rejection("malformed", str(error))
    return Rejection("failed", "the device could not do it; its own log says why") if reply.failed else reply
