"""A federation without a network: its device folders are in this process, and every order is answered at once.

What can go wrong with a network and its devices can go wrong here, too, on order: see `Fault`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from federec.network import device
from federec.network.certificates import member
from federec.network.device_folder import DeviceFolder, shares
from federec.network.hiding import Sums
from federec.network.keys import Key
from federec.network.messages import HEADER, MAGIC, PROTOCOL, Kind
from federec.network.server import serve
from federec.network.transport import Delivery
from federec.runs.folder import RunFolder


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one message to a node and with its reply."""

    lost: bool = False
    """The message never arrives."""
    twice: bool = False
    """It arrives twice, and is answered twice."""
    crash: Literal["", "before", "after"] = ""
    """The node's process ends, before or after it has kept the round; the next message starts a new one."""
    silent: bool = False
    """The node does as it is told, and the reply gets lost."""
    delay: int = 0
    """Rounds by which the reply comes later."""
    change: Callable[[bytes], bytes] = bytes
    """What arrives instead of the reply."""


Faults = Callable[[int, Kind, int], Fault]
"""(node, kind of message, round) -> what goes wrong with the message."""


def truncated(reply: bytes) -> bytes:
    """A reply that is cut off."""
    return reply[: len(reply) // 2]


def of_version(version: int) -> Callable[[bytes], bytes]:
    """A reply of another version of the protocol."""
    return lambda reply: HEADER.pack(MAGIC, version, 0) + reply[HEADER.size :]


NONE, LOST, SILENT, TWICE = Fault(), Fault(lost=True), Fault(silent=True), Fault(twice=True)
CRASH_BEFORE, CRASH_AFTER = Fault(crash="before"), Fault(crash="after")
TRUNCATED, OLD = Fault(change=truncated), Fault(change=of_version(PROTOCOL - 1))


class Crash(BaseException):
    """The process of a node ends."""


class Node:
    """A device folder that answers. It stays open from one message to the next."""

    def __init__(self, path: Path, key: Key) -> None:
        self.path, self.key = path, key
        self.folder: _Folder | None = None
        self.sums = Sums()

    def answer(self, content: bytes, crash: Literal["", "before", "after"] = "") -> bytes:
        """The reply to an order."""

        def opened() -> nullcontext[DeviceFolder]:
            self.folder = self.folder or _Folder(self.path, self.key)
            self.folder.crash = crash
            return nullcontext(self.folder)

        try:
            reply = device.answer(opened, content, self.sums)
            if crash == "after":
                raise Crash
            return reply
        except Crash:
            self.close()
            raise

    @property
    def users(self) -> int:
        """How many it was admitted for."""
        self.folder = self.folder or _Folder(self.path, self.key)
        return member(self.folder.identity.certificate, self.folder.root).users

    def close(self) -> None:
        if self.folder is not None:
            self.folder.close()
        self.folder, self.sums = None, Sums()


class _Folder(DeviceFolder):
    """A device folder whose process can be made to end before a round is kept."""

    crash = ""

    def commit(self, *values: Any, **named: Any) -> None:
        if self.crash == "before":
            raise Crash
        super().commit(*values, **named)


class InProcess:
    """The transport between a server and nodes of the same process."""

    def __init__(self, nodes: Mapping[int, Node], faults: Faults = lambda node, kind, round_: NONE) -> None:
        self.all, self.faults = nodes, faults
        self._users = {number: node.users for number, node in nodes.items()}
        self._tickets = map(str, itertools.count())
        self._round = 0
        self._replies: list[tuple[int, Delivery]] = []  # each with the round in which it arrives

    def nodes(self) -> Collection[int]:
        return self.all.keys()

    def users(self, node: int) -> int:
        return self._users[node]

    def send(self, messages: Mapping[int, bytes], kind: Kind, round_: int, timeout: float) -> dict[str, int]:
        self._round = round_
        tickets = {next(self._tickets): node for node in messages}
        for ticket, node in tickets.items():
            fault = self.faults(node, kind, round_)
            for _ in range(0 if fault.lost else 1 + fault.twice):
                try:
                    reply = self.all[node].answer(messages[node], fault.crash)
                    delivery = Delivery(ticket, fault.change(reply))
                except Crash:
                    delivery = Delivery(ticket, None, "the process of the node ended")
                if not fault.silent:
                    self._replies.append((round_ + fault.delay, delivery))
        return tickets

    def collect(self, tickets: Collection[str]) -> list[Delivery]:
        wanted = set(tickets)
        arrived = [each for each in self._replies if each[0] <= self._round and each[1].ticket in wanted]
        self._replies = [each for each in self._replies if each not in arrived]
        return [delivery for _, delivery in arrived]

    def close(self) -> None:
        for node in self.all.values():
            node.close()


def federation(path: Path, faults: Faults = lambda node, kind, round_: NONE) -> dict[str, Any]:
    """Play the federation of a prepared folder to the end, with the device folders in it; its result."""
    nodes = {number: Node(folder, Key.file(key)) for number, (folder, key) in enumerate(shares(path))}
    transport = InProcess(nodes, faults)
    try:
        serve(transport, path)
    finally:
        transport.close()
    return RunFolder(path).result()
