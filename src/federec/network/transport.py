"""What a server needs of a network: who is there, sending, collecting. Everything else is up to the network."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from federec.network.messages import Kind


@dataclass(frozen=True)
class Delivery:
    """What came of a message."""

    ticket: str
    """Of the message that it answers."""
    content: bytes | None
    """The reply; None where the network lost it."""
    error: str = ""
    """Why there is no reply, in the network's words."""


class Transport(Protocol):
    """A network that carries bytes to nodes and back."""

    def nodes(self) -> Collection[int]:
        """The nodes that can be reached now."""

    def send(self, messages: Mapping[int, bytes], kind: Kind, round_: int, timeout: float) -> dict[str, int]:
        """Send a message to each of these nodes; the node by ticket, for those messages that left. Replies need not be
        kept much longer than `timeout` seconds."""

    def users(self, node: int) -> int | None:
        """How many users a node was admitted for; None where the network does not know."""

    def collect(self, tickets: Collection[str]) -> Iterable[Delivery]:
        """What has come of these messages since the last call. Does not wait."""
