"""Federations in this process."""

import pytest

pytest.importorskip("cryptography", reason="pip install federec[flower]")

from tests.network.federated import federated, hurry

from federec.network.device_folder import shares
from federec.network.keys import Key
from federec.network.messages import Order
from federec.runtimes.in_process import NONE, InProcess, Node


class Watched(InProcess):
    """Remembers the orders that were sent."""

    def __init__(self, *values):
        super().__init__(*values)
        self.sent = []

    def send(self, messages, *how):
        self.sent += map(Order.parse, messages.values())
        return super().send(messages, *how)


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """Make a federation of a data set's users, with `faults`; `.serve()` plays it to the end."""
    hurry(monkeypatch)
    transports = []

    def make(data, *values, faults=lambda node, kind, round_: NONE, at=tmp_path / "run", **how):
        made = federated(at, data, *values, **how)
        nodes = {number: Node(path, Key.file(key)) for number, (path, key) in enumerate(shares(made.run))}
        made.transport = Watched(nodes, faults)
        transports.append(made.transport)
        return made

    yield make
    for transport in transports:
        transport.close()
