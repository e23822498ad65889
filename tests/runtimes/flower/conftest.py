"""A federation without processes: a grid in memory that hands the server's messages to the real ClientApp."""

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="pip install federec[flower]")

from flwr.app import Context, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.supercore.task_identity import TaskIdentity

from federec.data.interactions import Interactions
from federec.network import exchange
from federec.network.catalogue import Catalogue
from federec.network.device_folder import DeviceFolder
from federec.network.events import Events
from federec.network.keys import Key
from federec.network.settings import EVENTS, FederationSettings, prepare
from federec.runs.config import RunConfig
from federec.runtimes.flower import client
from federec.runtimes.flower.server import serve


class Grid:
    """Node n hosts users n, n + N, ... of N nodes. `twist` may change, delay (None) or refuse replies."""

    def __init__(self, folder, nodes, twist=lambda node, message, reply: reply):
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        self.folder, self.nodes, self.twist = folder, list(range(nodes)), twist
        self.replies, self.sent, self.contexts = {}, [], {}

    def get_node_ids(self):
        return self.nodes

    def context(self, node):
        config = {"device": str(self.folder / f"device-{node}"), "key": str(self.folder / f"key-{node}")}
        new = Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})
        return self.contexts.setdefault(node, new)

    def push_messages(self, messages):
        names = []
        for message in messages:
            name = f"message-{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            self.sent.append(message)
            node = message.metadata.dst_node_id
            copy = message_from_proto(message_to_proto(message))
            reply = self.twist(node, message, client.app(copy, self.context(node)))
            if reply is not None:
                self.replies[name] = reply
            names.append(name)
        return names

    def pull_messages(self, names):
        return [self.replies.pop(name) for name in list(names) if name in self.replies]


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """Make a federation of a split's users; `.serve()` plays it to the end."""
    monkeypatch.setattr(exchange, "POLL", 0.01)

    def make(
        data: Interactions, method="pfedrec", nodes=3, rounds=3, seed=5, settings=None, plugins=(), twist=None, **how
    ):
        values = {"method": method, "plugins": plugins, "settings": settings or {}, "rounds": rounds, "seed": seed}
        config = RunConfig.checked(**values, data="small", participation=1.0)
        run = tmp_path / "run"
        how = {"expected": nodes, "deadline": 5.0} | how
        prepare(run, config, FederationSettings.checked(**how), Catalogue.of(data))
        for node in range(nodes):
            key = Key.new_file(tmp_path / f"key-{node}")
            DeviceFolder.share(tmp_path / f"device-{node}", key, data, range(node, data.n_users, nodes)).close()
        grid = Grid(tmp_path, nodes, twist or (lambda node, message, reply: reply))

        def play():
            serve(grid, run, Events(run / EVENTS))
            return json.loads((run / "result.json").read_text())

        def events(kind):
            lines = map(json.loads, (run / EVENTS).read_text().splitlines())
            return [line for line in lines if line["event"] == kind]

        def store(node):
            return DeviceFolder.open(tmp_path / f"device-{node}", Key.file(tmp_path / f"key-{node}"))

        return SimpleNamespace(config=config, run=run, grid=grid, serve=play, events=events, store=store, data=data)

    return make


@pytest.fixture
def answer():
    """A reply made of another one, with other records."""

    def make(message, reply):
        return Message(reply.pack(), reply_to=message)

    return make
