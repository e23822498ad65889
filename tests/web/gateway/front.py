"""A gateway's port in this process, and tabs that speak to it as they like."""

import json
from base64 import urlsafe_b64encode

import httpx
from tests.runtimes.flower.fleet import MOST

from federec.network.certificates import Authority, Identity
from federec.network.events import Events
from federec.runtimes.flower.admission import Admission
from federec.runtimes.flower.link import Link
from federec.runtimes.flower.server import FleetTransport
from federec.runtimes.ports import answering, listening
from federec.web.gateway.app import Gateway
from federec.web.gateway.tokens import LABEL, decoded

FILES = {"index.html": b"<h1>page</h1>", "app.js": b"1;", "federation/bytes.js": b"2;"}


class Front:
    """A gateway on a loopback port, without TLS."""

    def __init__(self, folder):
        self.folder = folder
        self.authority = Authority.create(folder / "root")
        (folder / "nodes").mkdir()
        self.audit = folder / "audit.jsonl"
        self.link = Link()
        self.admission = Admission(self.link, folder / "nodes", self.authority.pem, Events(self.audit))
        self.transport = FleetTransport(self.link, self.admission)
        self.gateway = Gateway(self.link, self.admission, b'{"run": "r"}', FILES, MOST)
        self.listener = listening("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.server = answering(self.gateway, self.listener, ())

    def stop(self):
        self.server.should_exit = self.server.force_exit = True

    def tab(self, name, days=365, admitted=True):
        identity = Identity.new()
        if admitted:
            certificate = self.authority.admit(identity.request(), 1, days)
            (self.folder / "nodes" / f"{name}.crt").write_bytes(certificate)
            self.admission.look()
        return Tab(f"http://127.0.0.1:{self.port}/", identity)

    def joined(self, name):
        tab = self.tab(name)
        assert tab.join().is_success
        return tab

    def sent(self, *tabs, content=b"order"):
        """Orders to tabs that have joined; the ticket of each."""
        tickets = self.transport.send({tab.node: content for tab in tabs}, "train", 1, 5.0)
        nodes = {node: ticket for ticket, node in tickets.items()}
        return [nodes[tab.node] for tab in tabs]

    def lines(self, event):
        lines = map(json.loads, self.audit.read_text().splitlines()) if self.audit.exists() else ()
        return [line for line in lines if line["event"] == event]


class Tab:
    """Whoever has a key, and says with it what it likes."""

    def __init__(self, address, identity):
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        from federec.runtimes.flower.link import node_number

        self.address, self.identity, self.token = address, identity, ""
        self.node = node_number(public_key_to_bytes(identity.key.public_key()))

    def ask(self, method, path, content=b"", **headers):
        plain = {"timeout": 30, "verify": False, "trust_env": False}  # to load certificates takes longer than a test
        return httpx.request(method, self.address + path, content=content, headers=headers, **plain)

    def post(self, name, content=b"", token=None, **headers):
        """A call of the gateway, with the tab's own token unless another one is given."""
        token = self.token if token is None else token
        bearer = {"authorization": f"Bearer {token}"} if token else {}
        return self.ask("POST", f"gateway/{name}", content, **bearer | headers)

    def challenge(self):
        return self.post("challenge", token="").json()["challenge"]

    def join(self, **change):
        """Sign a challenge for a token; `change` says something else than is true."""
        challenge = change.get("challenge") or self.challenge()
        signature = change.get("signature") or self.identity.sign(LABEL + decoded(challenge))
        key = change.get("key", self.identity.public)
        body = {"key": text(key), "challenge": challenge, "signature": text(signature)}
        response = self.post("join", json.dumps(body).encode(), token="")
        if response.is_success and not change:
            self.token = response.json()["token"]
        return response

    def reply(self, ticket, content=b"reply", **how):
        return self.post("reply", content, **how, **{"federec-ticket": ticket})


def text(content):
    return urlsafe_b64encode(content).decode().rstrip("=")
