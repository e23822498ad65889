"""The network as the server sees it: Flower's LinkState, in memory, with the nodes that were admitted.

It keeps orders that were not fetched yet and replies that the server has not read yet, and nothing that has to survive
the process: a server that is started again sends its orders again. A message carries its content whole, so that it is
one request to the node and one back.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

from flwr.app import Message
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID, Status
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import NodeInfo
from flwr.server.superlink.linkstate import InMemoryLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, NodeStatus, TaskType
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.superlink.federation import NoOpFederationManager

from federec.network.messages import Kind
from federec.network.transport import Delivery
from federec.runtimes.flower.records import packed, unpacked

_TYPE = "query"  # all orders are of one type to Flower: what is ordered is said inside
_GRACE = 10.0  # seconds for which a message is kept longer than the server waits for its reply


def node_number(public_key: bytes) -> int:
    """What Flower calls the node of a public key: the same after every restart of the server."""
    return int.from_bytes(hashlib.sha256(public_key).digest()[:8]) | 2  # 0 and 1 are taken


class _NoObjects(InMemoryObjectStore):
    """Messages carry their content: there is nothing to fetch besides them."""

    def get_object_tree(self, object_id: str) -> ObjectTree:
        return ObjectTree(object_id=object_id)


class Link(InMemoryLinkState):
    """The state between one server and its nodes."""

    def __init__(self) -> None:
        super().__init__(NoOpFederationManager(), _NoObjects())
        self.run = self.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP.value
        )
        self.task_store[self.run_ids[self.run].run.primary_task_id or 0].status.status = Status.RUNNING
        self.outgoing: dict[int, dict[str, Message]] = {}
        """Orders that have no reply yet, by node and ticket."""
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = {}
        """Where each node waits for orders: a port has a loop of its own."""

    # Who is there

    def admit(self, public_key: bytes) -> int:
        """Let the holder of a key in; the number of its node."""
        node = node_number(public_key)
        with self.lock:
            self.nodes[node] = NodeInfo(
                node_id=node, owner_aid=NOOP_FLWR_AID, status=NodeStatus.REGISTERED, public_key=public_key
            )
            self.node_public_key_to_node_id[public_key] = node
        return node

    def remove(self, public_key: bytes) -> None:
        """Do not let the holder of a key in any more; what it was asked is lost."""
        with self.lock:
            node = self.node_public_key_to_node_id.pop(public_key)
            del self.nodes[node]

    def activate_node(self, node_id: int, heartbeat_interval: float) -> bool:
        """A node begins, or begins again after it was killed: it is sent once more what it has not answered."""
        with self.lock:
            for message in self.outgoing.get(node_id, {}).values():
                message.metadata.delivered_at = ""
            return self.acknowledge_node_heartbeat(node_id, heartbeat_interval)

    # What Flower's Fleet API asks

    def get_message_ins(self, node_id: int, limit: int | None, *, run_id: int | None = None) -> list[Message]:
        with self.lock:
            for message in self.outgoing.get(node_id, {}).values():
                if not message.metadata.delivered_at:
                    message.metadata.delivered_at = str(time.time())
                    return [message]
        return []

    def start_session(self, run_id: int) -> str:
        return ""

    def preregister_object_tree(self, object_tree: ObjectTree, session_id: str) -> list[str]:
        return []

    def awaits(self, node: int, ticket: str) -> bool:
        """Whether a node owes the reply to a message."""
        with self.lock:
            return ticket in self.outgoing.get(node, {}) and ticket not in self.message_ins_id_to_message_res_id

    async def order_for(self, node: int) -> None:
        """Wait until there is an order that the node has not fetched."""
        loop = asyncio.get_running_loop()
        if self._waiting.get(node, (None,))[0] is not loop:
            self._waiting[node] = loop, asyncio.Event()
        event = self._waiting[node][1]
        while not any(not message.metadata.delivered_at for message in list(self.outgoing.get(node, {}).values())):
            event.clear()
            await event.wait()

    # What a gateway asks, for nodes that do not speak Flower

    def heard(self, node: int, interval: float) -> None:
        """A node has given a sign of life, as it does in every interval; while it works on an order it need not."""
        with self.lock:
            if not self.acknowledge_node_heartbeat(node, interval):
                return
            for ticket, message in self.outgoing.get(node, {}).items():
                told = message.metadata
                if told.delivered_at and self.awaits(node, ticket):
                    self.nodes[node].online_until = max(self.nodes[node].online_until, told.created_at + told.ttl)

    def fetch(self, node: int) -> tuple[str, bytes] | None:
        """The next order for a node, with its ticket; None where there is none."""
        for message in self.get_message_ins(node, 1):
            return message.metadata.message_id, unpacked(message)
        return None

    def take(self, node: int, ticket: str, content: bytes) -> bool:
        """Take in a node's reply; whether it was waited for."""
        with self.lock:
            if not self.awaits(node, ticket):
                return False
            told, now = self.outgoing[node][ticket].metadata, time.time()
            left = max(1.0, told.created_at + told.ttl - now)
            metadata = Metadata(
                self.run, secrets.token_hex(32), node, SUPERLINK_NODE_ID, ticket, told.group_id, now, left, _TYPE
            )
            return self.store_message_res(make_message(metadata, packed(content))) is not None

    # What the server asks: see `federec.network.transport`

    def send(self, messages: Mapping[int, bytes], kind: Kind, round_: int, timeout: float) -> dict[str, int]:
        tickets = {}
        for node, content in messages.items():
            ticket = secrets.token_hex(32)
            begin, keep = time.time(), timeout + _GRACE
            metadata = Metadata(self.run, ticket, SUPERLINK_NODE_ID, node, "", str(round_), begin, keep, _TYPE)
            message = make_message(metadata, packed(content))
            if self.store_message_ins(message) is None:  # the node was removed
                continue
            with self.lock:
                self.outgoing.setdefault(node, {})[ticket] = message
            tickets[ticket] = node
            if node in self._waiting:
                loop, event = self._waiting[node]
                with suppress(RuntimeError):  # its port was closed
                    loop.call_soon_threadsafe(event.set)
        return tickets

    def collect(self, tickets: Collection[str]) -> Iterator[Delivery]:
        for ticket in tickets:
            with self.lock:
                order = self.message_ins_store.get(ticket)
                if order is None:  # Flower has dropped it, as its time was over
                    for waiting in self.outgoing.values():
                        waiting.pop(ticket, None)
                    yield Delivery(ticket, None, "its time is over")
                elif (delivery := self._outcome(ticket, order)) is not None:
                    del self.outgoing[order.metadata.dst_node_id][ticket]
                    self.delete_messages({ticket})
                    yield delivery

    def _outcome(self, ticket: str, order: Message) -> Delivery | None:
        """What has come of a message; None where nothing has yet."""
        reply = self.message_res_store.get(self.message_ins_id_to_message_res_id.get(ticket, ""))
        if reply is not None:
            return Delivery(ticket, unpacked(reply))
        now, node = time.time(), self.nodes.get(order.metadata.dst_node_id)
        if order.metadata.created_at + order.metadata.ttl < now:
            return Delivery(ticket, None, "its time is over")
        if node is None or node.status == NodeStatus.OFFLINE or node.online_until < now:
            return Delivery(ticket, None, "the node has left")
        return None
