"""The server against real ClientApps, over a grid in memory."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load
from tests.runtimes.flower.compare import assert_same, shared_after

from federec.cohort.layers import USERS
from federec.errors import UserError
from federec.federation.update import Mean
from federec.methods.base import DeviceMethod
from federec.methods.registry import METHODS
from federec.network.messages import RECORD, Reply
from federec.network.parameters import Payload
from federec.runs.folder import RunFolder
from federec.runtimes.flower import server
from federec.runtimes.local import run as run_locally

FEDERATED = [
    name
    for name, method in METHODS.items()
    if issubclass(method, DeviceMethod) and not any(USERS in param.shape for param in method().shared().values())
]


def small(name):
    wanted = {"dim": 4, "batch": 8, "item_lr_factor": 0.2, "item_lr": 2.0}
    return {key: value for key, value in wanted.items() if key in METHODS[name].model_fields}


@pytest.mark.parametrize("method", FEDERATED)
def test_a_federation_learns_what_a_local_run_learns(federation, random_split, tmp_path, method):
    data = random_split(users=14, items=40).data
    secure = {"secure": True, "minimum": 3} if METHODS[method].sums else {}
    trials = {"l2": (0.01, 0.1, 1.0)} if method == "fedease" else {}  # one is best: masked sums are rounded at random
    federated = federation(data, method, settings=small(method) | trials, **secure)
    federated.serve()
    run_locally(federated.config, data, RunFolder(tmp_path / "local"))
    assert_same(federated.run, tmp_path / "local")


@pytest.mark.parametrize("how", [{"rows": "all"}, {"rows": "decoys", "decoys": 12}])
def test_hiding_rows_changes_nothing_but_bytes(federation, random_split, tmp_path, how):
    data = random_split(users=6, items=400, least=3, most=6).data
    federated = federation(data, settings=small("pfedrec"), rounds=2, **how)
    federated.serve()
    run_locally(federated.config, data, RunFolder(tmp_path / "local"))
    assert_same(federated.run, tmp_path / "local")
    sent = [Payload.parse(seen) for seen in received(federated.grid)]
    assert all(len(seen.ids) == 400 for seen in sent) == (how["rows"] == "all")


def received(grid):
    orders = [message for message in grid.sent if message.metadata.message_type == "train"]
    return [load(order.content.config_records[RECORD]["seen"]) for order in orders]


def test_a_device_sends_nothing_in_the_clear_that_tells_what_it_has(federation, random_split):
    """A server that asks for it anyway gets no answer."""
    federated = federation(random_split().data, "fedease", rounds=1, minimum=3, secure=True)
    file = federated.run / "federation.json"
    bare = json.loads(file.read_text()) | {"minimum": 1}
    bare["channel"]["secure"] = False
    file.write_text(json.dumps(bare))
    with pytest.raises(UserError, match="'fedease' needs secure aggregation"):
        federated.serve()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError, match="fewer than 1 devices answered"):
        patch.setattr(server, "check_method", lambda config, settings: config.build())
        federated.serve()
    assert {line["reason"] for line in federated.events("rejected")} == {"failed"}


def test_bytes_grow_with_the_rows_that_travel(federation, random_split, tmp_path):
    data = random_split(users=3, items=2000, least=3, most=6).data
    federated = federation(data, settings=small("pfedrec"), rounds=2)
    each = federated.serve()["communication"]
    some = max(len(Payload.parse(seen).ids) for seen in received(federated.grid))
    assert 200 < some < 700  # what is ranked and what is learned from, of 2000
    assert some * 4 * 4 < each["down_bytes_per_device_round"] < some * 4 * 4 + 15_000
    assert each["up_bytes_per_device_round"] < each["down_bytes_per_device_round"]


@pytest.mark.parametrize("method", ["metamf", "ease"])
def test_methods_that_need_more_than_sums_are_refused(federation, random_split, method):
    with pytest.raises(UserError, match="federation"):
        federation(random_split().data, method)


def nan(reply):
    return replace(reply, update=Payload(reply.update.ids, {n: v * torch.nan for n, v in reply.update.rows.items()}))


def narrow(reply):
    return replace(reply, update=Payload(reply.update.ids, {n: v[:, :1] for n, v in reply.update.rows.items()}))


def huge(reply):
    return replace(reply, update=Payload(reply.update.ids, {n: v * 1e9 for n, v in reply.update.rows.items()}))


FAULTS = {
    "non-finite": nan,
    "shape": narrow,
    "norm": huge,
    "catalogue": lambda reply: replace(reply, catalogue="3-abc"),
    "replay": lambda reply: replace(reply, round=reply.round - 1),
    "malformed": lambda reply: replace(reply, devices=0),
    "failed": lambda reply: replace(reply, failed="device"),
}


@pytest.mark.parametrize("reason", FAULTS)
def test_a_bad_update_is_refused_and_counted_and_the_rest_goes_on(federation, random_split, answer, reason):
    def twist(node, message, reply):
        if node or message.metadata.message_type != "train":
            return reply
        return answer(message, FAULTS[reason](Reply.read(reply.content)))

    federated = federation(random_split().data, settings=small("pfedrec"), rounds=4, twist=twist, most_norm=1e6)
    assert federated.serve()["rounds"] == 4
    refused = federated.events("rejected")
    # Asked in round 1, then left in peace for two rounds.
    assert [(line["round"], line["reason"]) for line in refused] == [(1, reason), (4, reason)]
    asked = [line["devices"] for line in federated.events("asked") if line["kind"] == "train"]
    assert asked == [3, 2, 2, 3]


def test_garbage_is_refused(federation, random_split):
    def twist(node, message, reply):
        if node == 0:
            reply.content.config_records[RECORD]["facts"] = "[1, {"
        if node == 1 and message.metadata.message_type == "train":
            reply.content.config_records[RECORD]["update"] = b"\xff" * 40
        if node == 2 and message.metadata.message_type == "query":
            reply.content.config_records[RECORD]["update"] = 1.5
        return reply

    federated = federation(random_split().data, settings=small("pfedrec"), nodes=4, rounds=1, twist=twist)
    assert federated.serve()["rounds"] == 1
    assert {line["reason"] for line in federated.events("rejected")} == {"malformed"}


def test_a_late_reply_is_refused_and_its_round_goes_on_without_it(federation, random_split):
    held = []

    def twist(node, message, reply):
        if node == 0 and message.metadata.group_id == "1" and message.metadata.message_type == "train":
            held.append((message.metadata.message_id, reply))
            return None
        if message.metadata.group_id == "2":
            federated.grid.replies.update(held)
            held.clear()
        return reply

    federated = federation(random_split().data, settings=small("pfedrec"), twist=twist, deadline=0.3)
    federated.serve()
    assert [(line["round"], line["device"]) for line in federated.events("missing")] == [(1, "0")]
    assert [(line["round"], line["reason"]) for line in federated.events("rejected")] == [(1, "late")]


def test_a_round_with_too_few_devices_is_played_again_from_the_same_state(federation, random_split, tmp_path):
    lost = []

    def twist(node, message, reply):
        if message.metadata.message_type == "train" and message.metadata.group_id == "2" and not lost:
            lost.append(node)  # it has learned, and nobody hears of it
            return None
        return reply

    data = random_split().data
    federated = federation(data, settings=small("pfedrec"), twist=twist, deadline=0.3, minimum=3)
    federated.serve()
    assert [line["round"] for line in federated.events("again")] == [2]
    run_locally(federated.config, data, RunFolder(tmp_path / "local"))
    assert_same(federated.run, tmp_path / "local")


def test_devices_that_were_late_are_asked_again_where_too_few_are_left(federation, random_split):
    lost = []

    def twist(node, message, reply):
        if message.metadata.message_type == "query" and len(lost) < 3:
            lost.append(node)
            return None
        return reply

    federated = federation(random_split().data, settings=small("pfedrec"), twist=twist, deadline=0.3, minimum=3)
    assert federated.serve()["rounds"] == 3
    assert sorted(lost) == [0, 1, 2]


def test_a_round_that_is_played_again_asks_those_whose_first_words_were_lost(federation, random_split):
    lost = []

    def twist(node, message, reply):
        kind = message.metadata.message_type
        if kind == "query" and node == 2 and not lost:
            lost.append(node)
            return None
        return None if kind == "train" and node == 1 else reply

    federated = federation(random_split().data, settings=small("pfedrec"), twist=twist, deadline=0.3, minimum=2)
    assert federated.serve()["rounds"] == 3
    assert [line["round"] for line in federated.events("again")][:1] == [1]


def test_a_server_gives_up_when_devices_stay_away(federation, random_split):
    federated = federation(random_split().data, nodes=2, minimum=3, deadline=0.2, patience=0.4)
    with pytest.raises(UserError, match=r"round 1: 2 devices after 0.4 s, 3 are needed"):
        federated.serve()


class Killed(BaseException):
    """As if the process ended."""


@pytest.mark.parametrize("where", ["learned", "added up", "checkpoint"])
def test_a_server_that_is_killed_goes_on(federation, random_split, tmp_path, monkeypatch, where):
    def twist(node, message, reply):
        if where == "learned" and message.metadata.group_id == "3" and node == 1:
            raise Killed
        return reply

    data = random_split().data
    federated = federation(data, settings=small("pfedrec"), rounds=4, twist=twist)
    with monkeypatch.context() as patch:
        if where == "added up":
            patch.setattr(Mean, "values", dies(Mean.values))
        if where == "checkpoint":
            patch.setattr(RunFolder, "save", dies(RunFolder.save))
        with pytest.raises(Killed):
            federated.serve()
    federated.grid.twist = lambda node, message, reply: reply
    federated.serve()
    run_locally(federated.config, data, RunFolder(tmp_path / "local"))
    assert_same(federated.run, tmp_path / "local")
    assert [line["round"] for line in federated.events("start")] == [1, 3]


def dies(function):
    """Ends the process when it is called for the third time."""
    calls = []

    def instead(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise Killed
        return function(*arguments)

    return instead


def test_new_items_between_rounds(federation, random_split):
    def twist(node, message, reply):
        if message.metadata.message_type == "train" and message.metadata.group_id == "2" and node == 0:
            file = federated.run / "catalogue.json"
            grown = json.loads(file.read_text())
            grown["items"] += ["new-1", "new-2"]
            file.write_text(json.dumps(grown))
        return reply

    federated = federation(random_split(items=40).data, settings=small("pfedrec"), rounds=4, twist=twist)
    result = federated.serve()
    assert result["data"]["items"] == 42
    assert federated.events("rejected") == []
    assert len(shared_after(federated.run)["shared:items"]) == 42
    for node in range(3):
        store = federated.store(node)
        assert store.catalogue.labels[-2:] == ("new-1", "new-2")
        store.add(0, "new-1")


def test_a_target_below_the_devices_asks_so_many(federation, random_split):
    federated = federation(random_split().data, nodes=4, settings=small("pfedrec"), target=2, minimum=2)
    federated.serve()
    assert [line["devices"] for line in federated.events("asked") if line["kind"] == "train"] == [2, 2, 2]


def test_a_damaged_device_does_not_stop_the_others(federation, random_split):
    federated = federation(random_split().data, settings=small("pfedrec"))
    file = federated.run.parent / "device-1" / "device.db"
    file.write_bytes(file.read_bytes()[:1000] + b"\0" * 5000)
    assert federated.serve()["rounds"] == 3
    assert {line["reason"] for line in federated.events("rejected")} == {"failed"}
    assert all("device" not in line["detail"].replace("the device", "") for line in federated.events("rejected"))
