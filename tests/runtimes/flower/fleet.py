"""A server's port in this process, and devices that speak to it as they like."""

import datetime
import socket
import time
from base64 import b64encode

import httpx
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from federec.network.certificates import Authority, Identity
from federec.network.events import Events
from federec.runtimes.flower.admission import Admission
from federec.runtimes.flower.link import Link, node_number
from federec.runtimes.flower.records import packed
from federec.runtimes.flower.server import FleetTransport, start
from federec.runtimes.ports import listening

MOST = 1 << 20


class Fleet:
    """Flower's Fleet API on a loopback port, without TLS."""

    def __init__(self, folder):
        self.folder = folder
        self.authority = Authority.create(folder / "root")
        (folder / "nodes").mkdir()
        self.audit = folder / "audit.jsonl"
        self.link = Link()
        self.admission = Admission(
            self.link, folder / "nodes", self.authority.pem, Events(self.audit), (folder / "root" / "ca.crt",)
        )
        self.transport = FleetTransport(self.link, self.admission)
        self.listener = listening("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.server = start(self.link, self.admission, self.listener, (), MOST)

    def stop(self):
        self.server.should_exit = self.server.force_exit = True

    def device(self, name, users=1, days=365, admitted=True):
        """A device with a key of its own."""
        identity = Identity.new()
        if admitted:
            certificate = self.authority.admit(identity.request(), users, days)
            (self.folder / "nodes" / f"{name}.crt").write_bytes(certificate)
        return Device(f"http://127.0.0.1:{self.port}", identity)

    def lines(self, event):
        import json

        lines = map(json.loads, self.audit.read_text().splitlines()) if self.audit.exists() else ()
        return [line for line in lines if line["event"] == event]


class Device:
    """Whoever has a key, and says with it what it likes."""

    def __init__(self, address, identity, verify=True):
        self.address, self.identity, self.verify = address, identity, verify
        self.public = public_key_to_bytes(identity.key.public_key())
        self.node = Node(node_id=node_number(self.public))

    def headers(self, when=None, public=None):
        timestamp = (when or datetime.datetime.now(datetime.UTC)).isoformat()
        return {
            "content-type": "application/protobuf",
            "flwr-public-key": b64encode(public or self.public).decode(),
            "flwr-timestamp": timestamp,
            "flwr-signature": b64encode(self.identity.sign(timestamp.encode())).decode(),
        }

    def post(self, path, body, **headers):
        """The response to a request, signed with the device's key unless other headers are given."""
        content = body if isinstance(body, bytes) else body.SerializeToString()
        headers = headers or self.headers()
        with httpx.Client(verify=self.verify, timeout=30) as client:
            return client.post(f"{self.address}/v1/{path}", content=content, headers=headers)

    def activate(self):
        return self.post("fleet/activate-node", ActivateNodeRequest(public_key=self.public, heartbeat_interval=10))

    def pull(self, node=None):
        from flwr.proto.fleet_pb2 import PullMessagesResponse

        response = self.post("fleet/pull-messages", PullMessagesRequest(node=node or self.node))
        return response, PullMessagesResponse.FromString(response.content) if response.is_success else None

    def message(self, run, ticket, content=b"reply", source=None, target=SUPERLINK_NODE_ID):
        """A message as Flower writes it."""
        source = self.node.node_id if source is None else source
        metadata = Metadata(run, "ab" * 32, source, target, ticket, "1", time.time(), 5.0, "query")
        return message_to_proto(make_message(metadata, packed(content)))

    def push(self, message, node=None, trees=1):
        tree = [ObjectTree(object_id="ab" * 32)] * trees
        request = PushMessagesRequest(node=node or self.node, messages_list=[message], message_object_trees=tree)
        return self.post("fleet/push-messages", request)


def raw(port, text, seconds=30.0):
    """What comes back on a plain connection for these bytes, until it is closed; None where it stays open."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(text)
        answer = b""
        try:
            while part := connection.recv(1 << 16):
                answer += part
        except TimeoutError:
            return None
        except ConnectionResetError:
            pass
        return answer
