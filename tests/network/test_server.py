"""The server against nodes in this process: what it learns, and what it does when something goes wrong."""

import json
from dataclasses import replace

import pytest
import torch
from tests.network.compare import assert_same, shared_after

from federec.aggregators.mean import Mean
from federec.cohort.layers import USERS
from federec.errors import UserError
from federec.methods.base import DeviceMethod
from federec.methods.registry import METHODS
from federec.network import server
from federec.network.messages import PROTOCOL, Reply
from federec.network.parameters import Payload
from federec.reporting.tables import compare_table
from federec.runs.folder import RunFolder
from federec.runtimes.in_process import (
    CRASH_AFTER,
    CRASH_BEFORE,
    LOST,
    NONE,
    SILENT,
    TRUNCATED,
    TWICE,
    Fault,
    of_version,
)
from federec.runtimes.local import run as run_locally
from federec.tracking.registry import remember
from federec.tracking.tensorboard import TensorBoard

IN_CLEAR = [
    name
    for name, method in METHODS.items()
    if issubclass(method, DeviceMethod)
    and not any(USERS in param.shape for param in method().shared().values())
    and not method.sums
]
"""Methods of a federation without secure aggregation."""


def small(name):
    # Without dropout: where it takes almost all of 4 values, norms divide by almost nothing.
    wanted = {"dim": 4, "batch": 8, "item_lr_factor": 0.2, "item_lr": 2.0, "dropout": 0.0}
    return {key: value for key, value in wanted.items() if key in METHODS[name].model_fields}


@pytest.mark.parametrize(
    # Those are played with secure sums in test_hidden.py.
    "method",
    [pytest.param(name, marks=pytest.mark.slow if name in ("fedmf", "fedncf", "fedrap") else ()) for name in IN_CLEAR],
)
def test_a_federation_learns_what_a_local_run_learns(federation, random_split, tmp_path, method):
    data = random_split(users=14, items=40).data
    federated = federation(data, method, settings=small(method))
    federated.serve()
    run_locally(federated.config, data, RunFolder(tmp_path / "local"))
    assert_same(federated.run, tmp_path / "local")


def test_the_earliest_of_equal_rounds_counts_whatever_the_last_bits_say(federation, random_split):
    """The order in which devices answer changes the last bits of a metric."""

    def nearly_equal(content):
        old = Reply.parse(content)
        users = old.sums["valid sampled ndcg@10"][1]
        return replace(
            old, sums=old.sums | {"valid sampled ndcg@10": (0.5 * users * (1 + old.round * 1e-15), users)}
        ).pack()

    def faults(node, kind, round_):
        return Fault(change=nearly_equal) if kind == "train" else NONE

    federated = federation(random_split().data, settings=small("pfedrec"), faults=faults)
    assert federated.serve()["best_round"] == 1
    lines = (federated.run / "rounds.jsonl").read_text().splitlines()
    values = [json.loads(line)["valid"]["ndcg@10"] for line in lines]
    assert values == sorted(values) and len(set(values)) == 3


def test_a_federation_can_be_tracked(federation, random_split):
    pytest.importorskip("tensorboard", reason="pip install federec[tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    federated = federation(random_split().data, settings=small("pfedrec"), rounds=2)
    remember([TensorBoard()], federated.run)
    result = federated.serve()
    read = EventAccumulator(str(federated.run)).Reload()
    assert [each.step for each in read.Scalars("valid/hr@10")] == [1, 2]
    [tested] = read.Scalars("result/test.sampled.hr@10")
    assert tested.value == pytest.approx(result["test"]["sampled"]["hr@10"])


def test_whole_tables_change_nothing_but_bytes(federation, random_split, tmp_path):
    data = random_split(users=6, items=400, least=3, most=6).data
    federated = federation(data, settings=small("pfedrec"), rounds=2, channel=("dense",))
    federated.serve()
    run_locally(federated.config, data, RunFolder(tmp_path / "local"))
    assert_same(federated.run, tmp_path / "local")
    assert all(count == 400 for count in rows_sent(federated))


def rows_sent(federated):
    """How many item rows came with each order to train."""
    return [len(order.shared.ids) for order in federated.transport.sent if order.kind == "train"]


def test_a_device_sends_nothing_in_the_clear_that_tells_what_it_has(federation, random_split):
    """A server that asks for it anyway gets no answer."""
    federated = federation(random_split().data, "fedease", rounds=1, minimum=3, patience=1, channel=("secure-sum",))
    bare = federated.config.model_copy(update={"channel": ()})
    (federated.run / "config.yaml").write_text(bare.text())
    with pytest.raises(UserError, match="'fedease' needs secure aggregation"):
        federated.serve()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError, match="0 devices after 1 s, 3 are needed"):
        patch.setattr(server, "check_method", lambda config, settings: (config.build(), config.link(config.build())))
        federated.serve()
    assert {line["reason"] for line in federated.events("rejected")} == {"failed"}


def test_bytes_grow_with_the_rows_that_travel(federation, random_split, tmp_path):
    data = random_split(users=3, items=2000, least=3, most=6).data
    federated = federation(data, settings=small("pfedrec"), rounds=2)
    each = federated.serve()["communication"]
    assert each["users_per_node"] == 1
    assert each["up_bytes_per_device_round"] == each["up_bytes_per_node_round"]
    some = max(rows_sent(federated))
    assert 200 < some < 700  # what is ranked and what is learned from, of 2000
    assert some * 4 * 4 < each["down_bytes_per_device_round"] < some * 4 * 4 + 15_000
    assert each["up_bytes_per_device_round"] < each["down_bytes_per_device_round"]


def test_bytes_are_per_node_and_hubs_have_no_bytes_per_device(federation, random_split):
    federated = federation(random_split(users=12).data, settings=small("pfedrec"), rounds=2)
    counted = {"up": [], "down": []}

    class Counting(type(federated.transport)):
        def send(self, messages, kind, round_, timeout):
            counted["down"] += [len(content) for content in messages.values() if not last(kind)]
            return super().send(messages, kind, round_, timeout)

        def collect(self, tickets):
            for delivery in super().collect(tickets):
                counted["up"].append(len(delivery.content))
                yield delivery

    def last(kind):
        return kind == "evaluate"  # of the best round: after the last one

    federated.transport.__class__ = Counting
    result = federated.serve()
    compare_table([result])  # in which it has no bytes per device
    each, counted["up"] = result["communication"], counted["up"][:-3]
    assert each.keys() == {"up_bytes_per_node_round", "down_bytes_per_node_round", "users_per_node"}
    assert each["users_per_node"] == 4
    for way, sizes in counted.items():
        assert len(sizes) == 3 * 3  # three nodes are asked who they are, and play two rounds
        assert each[f"{way}_bytes_per_node_round"] == pytest.approx(sum(sizes) / 3 / 2)
    assert "per node of 4 users and round" in (federated.run / "report.html").read_text()


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
    "catalogue": lambda reply: replace(reply, catalogue="3-abcdef012345"),
    "replay": lambda reply: replace(reply, round=reply.round - 1),
    "malformed": lambda reply: replace(reply, devices=0),
    "failed": lambda reply: replace(reply, failed="device"),
}


@pytest.mark.parametrize("reason", FAULTS)
def test_a_bad_update_is_refused_and_counted_and_the_rest_goes_on(federation, random_split, reason):
    bad = Fault(change=lambda reply: FAULTS[reason](Reply.parse(reply)).pack())

    def faults(node, kind, round_):
        return bad if node == 0 and kind == "train" else NONE

    federated = federation(random_split().data, settings=small("pfedrec"), rounds=4, faults=faults, most_norm=1e6)
    assert federated.serve()["rounds"] == 4
    refused = federated.events("rejected")
    # Asked in round 1, then skipped for two rounds.
    assert [(line["round"], line["reason"]) for line in refused] == [(1, reason), (4, reason)]
    asked = [line["devices"] for line in federated.events("asked") if line["kind"] == "train"]
    assert asked == [3, 2, 2, 3]


def test_garbage_is_refused(federation, random_split):
    def faults(node, kind, round_):
        if node == 0:
            return Fault(change=lambda reply: reply[:14] + b"[1, {" + reply[19:])
        if node == 1 and kind == "train":
            return Fault(change=lambda reply: reply[:-40] + b"\xff" * 80)
        return TRUNCATED if node == 2 and kind == "query" else NONE

    federated = federation(random_split().data, settings=small("pfedrec"), nodes=4, rounds=1, faults=faults, deadline=1)
    assert federated.serve()["rounds"] == 1
    assert {line["reason"] for line in federated.events("rejected")} == {"malformed"}


@pytest.mark.parametrize(("version", "older"), [(PROTOCOL - 1, "device"), (PROTOCOL + 1, "server")])
def test_a_node_of_another_version_is_refused_with_a_word_about_who_has_to_update(
    federation, random_split, version, older
):
    def faults(node, kind, round_):
        return Fault(change=of_version(version)) if node == 1 else NONE

    federated = federation(random_split().data, settings=small("pfedrec"), rounds=1, faults=faults, deadline=1)
    assert federated.serve()["rounds"] == 1
    line = f"device 1 speaks protocol {version}, this server {PROTOCOL}: update federec on the {older}"
    assert {(each["reason"], each["detail"]) for each in federated.events("rejected")} == {("version", line)}


def test_a_late_reply_is_refused_and_its_round_goes_on_without_it(federation, random_split):
    def faults(node, kind, round_):
        return Fault(delay=1) if (node, kind, round_) == (0, "train", 1) else NONE

    federated = federation(random_split().data, settings=small("pfedrec"), faults=faults, deadline=0.3)
    federated.serve()
    assert [(line["round"], line["device"]) for line in federated.events("missing")] == [(1, "0")]
    assert [(line["round"], line["reason"]) for line in federated.events("rejected")] == [(1, "late")]


def test_a_reply_that_comes_twice_counts_once(federation, random_split, tmp_path):
    data = random_split().data
    federated = federation(data, settings=small("pfedrec"), faults=lambda node, kind, round_: TWICE if node else NONE)
    federated.serve()
    assert federated.events("rejected") == []
    run_locally(federated.config, data, RunFolder(tmp_path / "local"))
    assert_same(federated.run, tmp_path / "local")


def once(fault, *wanted):
    """Befalls the first message of this kind and round."""
    done = []

    def faults(node, kind, round_):
        if (kind, round_) == wanted and not done:
            done.append(node)
            return fault
        return NONE

    return faults


@pytest.mark.parametrize("fault", [LOST, SILENT, CRASH_BEFORE, CRASH_AFTER], ids=str)
def test_a_round_with_too_few_nodes_is_played_again_from_the_same_state(federation, random_split, tmp_path, fault):
    """Whether or not the node that failed had learned already."""
    data, faults = random_split().data, once(fault, "train", 2)
    federated = federation(data, settings=small("pfedrec"), faults=faults, deadline=0.3, minimum=3)
    federated.serve()
    assert [line["round"] for line in federated.events("again")] == [2]
    run_locally(federated.config, data, RunFolder(tmp_path / "local"))
    assert_same(federated.run, tmp_path / "local")


def test_nodes_that_were_late_are_asked_again_where_too_few_are_left(federation, random_split):
    lost = []

    def faults(node, kind, round_):
        if kind == "query" and len(lost) < 3:
            lost.append(node)
            return SILENT
        return NONE

    federated = federation(random_split().data, settings=small("pfedrec"), faults=faults, deadline=0.3, minimum=3)
    assert federated.serve()["rounds"] == 3
    assert sorted(lost) == [0, 1, 2]


def test_a_round_that_is_played_again_asks_those_whose_first_words_were_lost(federation, random_split):
    lost = []

    def faults(node, kind, round_):
        if kind == "query" and node == 2 and not lost:
            lost.append(node)
            return SILENT
        return SILENT if kind == "train" and node == 1 else NONE

    federated = federation(random_split().data, settings=small("pfedrec"), faults=faults, deadline=0.3, minimum=2)
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
    def faults(node, kind, round_):
        if where == "learned" and round_ == 3 and node == 1:
            raise Killed
        return NONE

    data = random_split().data
    federated = federation(data, settings=small("pfedrec"), rounds=4, faults=faults)
    with monkeypatch.context() as patch:
        if where == "added up":
            patch.setattr(Mean, "result", dies(Mean.result))
        if where == "checkpoint":
            patch.setattr(RunFolder, "save", dies(RunFolder.save))
        with pytest.raises(Killed):
            federated.serve()
    federated.transport.faults = lambda node, kind, round_: NONE
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
    def faults(node, kind, round_):
        if (node, kind, round_) == (0, "train", 2):
            file = federated.run / "catalogue.json"
            grown = json.loads(file.read_text())
            grown["items"] += ["new-1", "new-2"]
            file.write_text(json.dumps(grown))
        if (node, kind, round_) == (0, "train", 4):  # though the settings' file is another one by now
            with pytest.raises(UserError, match="another server is at work on it"):
                federated.serve()
        return NONE

    federated = federation(random_split(items=40).data, settings=small("pfedrec"), rounds=4, faults=faults)
    result = federated.serve()
    assert result["data"]["items"] == 42
    assert federated.events("rejected") == []
    assert len(shared_after(federated.run)["shared:items"]) == 42
    for node in range(3):
        folder = federated.folder(node)
        assert folder.catalogue.labels[-2:] == ("new-1", "new-2")
        folder.add(0, "new-1")


def test_a_target_below_the_number_of_nodes_asks_that_many(federation, random_split):
    federated = federation(random_split().data, nodes=4, settings=small("pfedrec"), target=2, minimum=2)
    federated.serve()
    assert [line["devices"] for line in federated.events("asked") if line["kind"] == "train"] == [2, 2, 2]


def test_a_damaged_folder_does_not_stop_the_others(federation, random_split):
    federated = federation(random_split().data, settings=small("pfedrec"), deadline=1)
    file = federated.run / "devices" / "device-1" / "device.db"
    file.write_bytes(file.read_bytes()[:1000] + b"\0" * 5000)
    assert federated.serve()["rounds"] == 3
    assert {line["reason"] for line in federated.events("rejected")} == {"failed"}
    assert all("device" not in line["detail"].replace("the device", "") for line in federated.events("rejected"))
