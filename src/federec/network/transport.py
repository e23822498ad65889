"""What a server needs of a network: who is there, sending, collecting. Everything else is up to the network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from federec.methods.base import DeviceMethod
from federec.network.messages import Kind, Order, Reply

if TYPE_CHECKING:
    from federec.network.exchange import Exchange


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

    @property
    def secure_sum(self) -> SecureSum | None:
        """How this network adds up replies so that the server sees none of them; None where it cannot."""

    def nodes(self) -> Collection[int]:
        """The nodes that can be reached now."""

    def send(self, messages: Mapping[int, bytes], kind: Kind, round_: int, timeout: float) -> dict[str, int]:
        """Send a message to each of these nodes; the node by ticket, for those messages that left. Replies need not be
        kept much longer than `timeout` seconds."""

    def collect(self, tickets: Collection[str]) -> Iterable[Delivery]:
        """What has come of these messages since the last call. Does not wait."""


SecureSum = Callable[
    ["Exchange", Mapping[int, Order], Mapping[int, int], DeviceMethod, int, float], tuple[Reply | None, int]
]
"""(exchange, orders by node, users by node, method, number of items, largest value) -> the sum of the nodes' replies to
the orders and the number of nodes in it; None where too few were left. Bytes, refusals and silence are told to the
exchange."""
