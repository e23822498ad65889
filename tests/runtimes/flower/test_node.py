"""A node: what it says, what it does not read, and what never leaves it."""

import logging
import threading
import time

import pytest

from federec.errors import UserError
from federec.network.catalogue import Catalogue
from federec.network.device_folder import DeviceFolder
from federec.network.keys import Key
from federec.network.messages import Order, Reply
from federec.runtimes import bounds
from federec.runtimes.flower.node import Participant, Repeats, join


class Node(Participant):
    """In a thread, which ends when the server is stopped after a test."""

    over = False

    def connected(self):
        if Node.over:
            raise SystemExit
        return super().connected()


@pytest.fixture
def device(fleet, tmp_path, monkeypatch):
    """A device folder with its key, admitted; `.start()` lets it take part in a thread."""
    monkeypatch.setattr(bounds, "HOLD", 0.1)

    class Made:
        path, keyfile = tmp_path / "device", tmp_path / "device.key"

        def __init__(self):
            self.key = Key.new_file(self.keyfile)
            folder = DeviceFolder.create(self.path, self.key, Catalogue(("a", "b", "c")), ["me"])
            certificate = fleet.authority.admit(folder.identity.request(), 1)
            (tmp_path / "nodes" / "phone.crt").write_bytes(certificate)
            folder.admit(certificate, fleet.authority.pem)
            self.identity = folder.identity
            folder.close()

        def start(self, most=1 << 20):
            node = Node(f"127.0.0.1:{fleet.port}", self.path, self.key, self.identity, b"", most)
            threading.Thread(target=node.stay, daemon=True).start()
            limit = time.monotonic() + 10
            while not fleet.transport.nodes() and time.monotonic() < limit:
                time.sleep(0.01)

    monkeypatch.setattr(Node, "over", False)
    yield Made()
    Node.over = True


def answered(fleet, content):
    """The reply of the one node that is there."""
    (node,) = fleet.transport.nodes()
    (ticket,) = fleet.transport.send({node: content}, "train", 1, 10.0)
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        for delivery in fleet.transport.collect([ticket]):
            return delivery.content
        time.sleep(0.01)
    return None


def test_errors_leave_a_device_without_text_or_path(fleet, device, tmp_path, caplog):
    device.start()
    order = Order("train", "run", 1, {"method": "../../evil.py:Evil"}, [3]).pack()
    contents = [b"garbage", order]
    replies = [answered(fleet, content) for content in contents]
    (device.path / "device.db").write_bytes(b"damaged")
    replies.append(answered(fleet, order))
    for reply in replies:
        assert Reply.parse(reply).failed in ("error", "device")
        assert str(tmp_path).encode() not in reply
        assert b"Error" not in reply
        assert b"evil" not in reply
    assert "device.db" in caplog.text  # its own log does say


def test_a_device_that_is_refused_says_why_once(fleet, device, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("federec.runtimes.flower.node._LATER", 0.05)
    (tmp_path / "nodes" / "phone.crt").unlink()
    node = Node(f"127.0.0.1:{fleet.port}", device.path, device.key, device.identity, b"")
    threading.Thread(target=node.stay, daemon=True).start()
    time.sleep(0.6)
    said = capfd.readouterr().err
    assert said.count("the server refuses this device: this device was not admitted, or was removed\n") == 1


def test_orders_that_are_too_large_are_not_read(fleet, device, capfd):
    device.start(most=5000)
    (node,) = fleet.transport.nodes()
    fleet.transport.send({node: bytes(6000)}, "train", 1, 10.0)
    time.sleep(0.8)
    assert "bytes, more than 5000" in capfd.readouterr().err


def test_a_device_that_was_not_admitted_does_not_begin(tmp_path):
    key = Key.new_file(tmp_path / "key")
    DeviceFolder.create(tmp_path / "device", key, Catalogue(("a",)), ["me"]).close()
    with pytest.raises(UserError, match="was not admitted to a federation yet"):
        join("127.0.0.1:9", tmp_path / "device", tmp_path / "key")


def test_a_refusal_that_repeats_is_logged_less_and_less_often():
    repeats, said = Repeats(), []
    for round_ in range(1, 20):
        record = logging.LogRecord("federec.device", logging.ERROR, "", 0, "round %d: %s", (round_, "refused"), None)
        if repeats.filter(record):
            said.append(record.getMessage())
    assert said == ["round 1: refused", *(f"round {n}: refused (time {n})" for n in (2, 4, 8, 16))]
    for name, args in (("federec.device", (20, "another reason")), ("flwr", (20, "refused"))):
        assert repeats.filter(logging.LogRecord(name, logging.ERROR, "", 0, "round %d: %s", args, None))
