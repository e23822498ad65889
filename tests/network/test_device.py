"""A node answers whatever it is sent."""

import hashlib
import logging
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from federec.network.device import answer
from federec.network.device_folder import DeviceFolder
from federec.network.hiding import Sums
from federec.network.keys import Key
from federec.network.messages import HEADER, MAGIC, PROTOCOL, Order, Reply
from federec.network.parameters import Payload
from federec.network.policy import Policy
from federec.runs.config import RunConfig

KEY = Key("file", b"k" * 32)
CONFIG = RunConfig.checked(method="pfedrec", settings={"dim": 4})
ITEMS = Payload(torch.arange(40), {"items": torch.randn(40, 4, generator=torch.Generator().manual_seed(1))})
ORDER = Order("train", "films", 1, CONFIG.model_dump(mode="json"), [40], shared=ITEMS)


@pytest.fixture
def ask(tmp_path, random_split):
    """Send bytes to a node; its reply."""
    path = tmp_path / "device"
    folder = DeviceFolder.share(path, KEY, random_split(users=3, items=40).data, range(3))
    folder.pin(Policy(clear=True))
    folder.close()
    return lambda content: Reply.parse(answer(lambda: closing(DeviceFolder.open(path, KEY)), content, Sums()))


def test_a_good_order_is_carried_out(ask):
    reply = ask(ORDER.pack())
    assert (reply.failed, reply.run, reply.round, reply.devices) == ("", "films", 1, 3)
    assert len(reply.update.ids) == len(reply.update.rows["items"]) > 0
    assert ask(replace(ORDER, kind="query").pack()).update.rows == {}
    assert "valid full hr@10" in ask(replace(ORDER, kind="evaluate", full=True).pack()).sums


def test_a_server_cannot_make_a_device_import_what_it_names(ask, tmp_path, monkeypatch, caplog):
    """A file runs only where the device itself was told to trust it, and only with the content that the server has."""
    file = tmp_path / "mine.py"
    file.write_text(f"import federec as fr\nopen({str(tmp_path / 'ran')!r}, 'w')\nclass Mine(fr.PFedRec):\n    pass\n")
    order = replace(ORDER, config=ORDER.config | {"method": f"{file}:Mine", "sources": {f"{file}:Mine": "0" * 64}})
    for method in (f"{file}:Mine", "mine:Mine"):
        assert ask(replace(order, config=order.config | {"method": method}).pack()).failed == "device"
    assert not (tmp_path / "ran").exists()
    monkeypatch.setenv("FEDEREC_METHODS", f"{file}:Mine")
    assert ask(order.pack()).failed == "device"
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    order = replace(order, config=order.config | {"sources": {f"{file}:Mine": sha256}})
    assert ask(order.pack()).failed == "device"  # it is trusted, but the policy names another method
    folder = DeviceFolder.open(tmp_path / "device", KEY)
    folder.pin(Policy(clear=True, method=f"{file}:Mine"))
    folder.close()
    assert ask(order.pack()).failed == ""


@pytest.mark.parametrize("content", [b"", b"anything", ORDER.pack()[:-7], ORDER.pack()[:40]], ids=len)
def test_a_malformed_order_is_answered_with_a_failure(ask, content, caplog):
    reply = ask(content)
    assert reply.failed == "error"
    assert (reply.devices, reply.wanted.tolist(), reply.sums) == (0, [], {})
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize(("version", "older"), [(PROTOCOL - 1, "server"), (PROTOCOL + 1, "device")])
def test_an_order_of_another_version_is_answered_with_a_failure_that_it_can_read(ask, version, older, caplog):
    reply = ask(HEADER.pack(MAGIC, version, 7) + b"whatever comes then")
    assert reply.failed == "version"
    assert caplog.messages == [
        f"the server speaks protocol {version}, this device {PROTOCOL}: update federec on the {older}"
    ]


@pytest.mark.parametrize(
    "order",
    [
        replace(ORDER, config={"method": "nothing"}),
        replace(ORDER, config={"method": "ease"}),
        replace(ORDER, config=ORDER.config | {"channel": [{"stage": "clipp"}]}),
        replace(ORDER, sizes=[10**9]),
        replace(ORDER, shared=Payload(torch.tensor([99]), {"items": torch.zeros(1, 4)})),
        replace(ORDER, shared=Payload.nothing()),
        replace(ORDER, kind="evaluate", keep=5),
    ],
    ids=range(7),
)
def test_an_order_that_cannot_be_carried_out_is_answered_with_a_failure(ask, order):
    reply = ask(order.pack())
    assert reply.failed in ("device", "error")
    assert (reply.run, reply.round, reply.update.rows) == ("films", order.round, {})
