"""A federation on Flower without processes: a grid in memory that hands the server's messages to the real ClientApp."""

import pytest

pytest.importorskip("flwr", reason="pip install federec[flower]")

from flwr.app import Context, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.supercore.task_identity import TaskIdentity
from tests.network.federated import federated, hurry

from federec.network.device_folder import shares
from federec.runtimes.flower import client
from federec.runtimes.flower.server import GridTransport


class Grid:
    """`twist(node, message, reply)` may change, delay (None) or refuse replies."""

    def __init__(self, run, twist):
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        self.folders, self.twist = dict(enumerate(shares(run))), twist
        self.replies, self.sent, self.contexts = {}, [], {}

    def get_node_ids(self):
        return self.folders.keys()

    def context(self, node):
        device, key = self.folders[node]
        config = {"device": str(device), "key": str(key)}
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
    """Make a federation of a data set's users; `.serve()` plays it to the end, over `.grid`."""
    hurry(monkeypatch)

    def make(data, *values, twist=lambda node, message, reply: reply, **how):
        made = federated(tmp_path / "run", data, *values, **how)
        made.grid = Grid(made.run, twist)
        made.transport = GridTransport(made.grid)
        return made

    return make
