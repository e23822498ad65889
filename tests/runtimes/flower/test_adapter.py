"""Flower as a network: ServerApp and ClientApp carry a federation's bytes, one record a message."""

import json

import pytest

pytest.importorskip("flwr", reason="pip install federec[flower]")

from flwr.app import ConfigRecord, Error, Message, RecordDict
from tests.network.compare import assert_same

from federec.network.messages import HEADER, MAGIC, PROTOCOL, Reply
from federec.runs.folder import RunFolder
from federec.runtimes.flower.records import CONTENT, RECORD, packed, unpacked
from federec.runtimes.local import run as run_locally

SMALL = {"dim": 4, "batch": 8, "item_lr_factor": 0.2}


@pytest.mark.parametrize("method", ["pfedrec", "fedncf"])
def test_a_federation_on_flower_learns_what_a_local_run_learns(federation, random_split, tmp_path, method):
    data = random_split(users=14, items=40).data
    federated = federation(data, method, settings=SMALL if method == "pfedrec" else {"dim": 4})
    federated.serve()
    run_locally(federated.config, data, RunFolder(tmp_path / "local"))
    assert_same(federated.run, tmp_path / "local")
    assert {len(message.content) for message in federated.grid.sent} == {1}  # each record is a request of its own
    assert all([*message.content[RECORD]] == [CONTENT] for message in federated.grid.sent)


def test_what_flower_lost_is_refused_and_the_rest_goes_on(federation, random_split):
    def twist(node, message, reply):
        lost = node == 0 and message.metadata.message_type == "train"
        return Message(Error(0, "gone"), reply_to=message) if lost else reply

    federated = federation(random_split().data, settings=SMALL, rounds=1, twist=twist)
    assert federated.serve()["rounds"] == 1
    assert [(line["reason"], line["detail"]) for line in federated.events("rejected")] == [("failed", "Flower: gone")]


@pytest.mark.parametrize("kind", ["query", "train", "evaluate"])
@pytest.mark.parametrize(
    ("content", "failed"),
    [
        (RecordDict(), "error"),
        (RecordDict({RECORD: ConfigRecord({"facts": "{}", "seen": b""})}), "error"),  # as before there were versions
        (RecordDict({RECORD: ConfigRecord({CONTENT: 7})}), "error"),
        (packed(b"garbage"), "error"),
        (packed(HEADER.pack(MAGIC, PROTOCOL + 1, 0)), "version"),
    ],
    ids=["nothing", "old", "number", "garbage", "newer"],
)
def test_the_client_app_answers_whatever_it_is_sent(federation, random_split, kind, content, failed):
    federated = federation(random_split().data, settings=SMALL)
    replies = []
    federated.grid.twist = lambda node, message, reply: replies.append(reply)
    federated.grid.push_messages([Message(content, 0, kind)])
    assert Reply.parse(unpacked(replies[0].content)).failed == failed


def test_what_else_comes_in_flowers_messages_is_malformed(federation, random_split):
    def twist(node, message, reply):
        return Message(RecordDict({"other": ConfigRecord({"x": 1})}), reply_to=message) if node == 0 else reply

    federated = federation(random_split().data, settings=SMALL, rounds=1, twist=twist, deadline=1)
    federated.serve()
    assert {line["reason"] for line in federated.events("rejected")} == {"malformed"}
    assert json.loads((federated.run / "result.json").read_text())["communication"]["users_per_node"] == 4
