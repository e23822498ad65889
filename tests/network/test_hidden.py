"""Federations whose server only sees secure sums."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography", reason="pip install federec[flower]")

from tests.network.compare import assert_same, shared_after
from tests.network.federated import federated as prepared
from tests.network.federated import hurry

from federec.cohort.draw import Devices
from federec.data.split import leave_one_out
from federec.errors import UserError
from federec.federation.device import learn
from federec.federation.round import play
from federec.federation.state import State
from federec.network import server as server_module
from federec.network.messages import Reply
from federec.runs.folder import RunFolder
from federec.runtimes.in_process import LOST, NONE, SILENT, Fault, federation
from federec.runtimes.local import run as run_locally

SECURE = ("secure-sum",)
SMALL = {"dim": 4, "item_lr_factor": 0.2}


@pytest.mark.parametrize("method", ["pfedrec", "fedmf", "fedncf", "fedrap", "fedease", "fednext", "fedals"])
def test_a_hidden_federation_learns_what_a_local_run_learns(federation, random_split, small, tmp_path, method):
    data, settings = random_split(users=12, items=40).data, small(method).model_dump(mode="json")
    made = federation(data, method, nodes=4, rounds=2, settings=settings, channel=("secure-sum:most=16",), minimum=2)
    made.serve()
    run_locally(made.config, data, RunFolder(tmp_path / "local"))
    assert_same(made.run, tmp_path / "local")


def test_the_server_reads_sums_and_nothing_of_a_node(federation, random_split):
    """Every reply holds masked numbers, keys and shares: no rows, no figures, nothing that is wanted."""
    replies = []

    def keep(content):
        replies.append(Reply.parse(content))
        return content

    made = federation(
        random_split().data, nodes=4, rounds=2, settings=SMALL, channel=SECURE, minimum=2,
        faults=lambda node, kind, round_: Fault(change=keep),
    )  # fmt: skip
    made.serve()
    assert len(replies) == 4 * (1 + 2 * 3 + 1 + 3)  # who they are, two rounds of three legs, keys, the last evaluation
    for reply in replies:
        assert reply.sums == {} and not len(reply.wanted) and not len(reply.update.ids)
        assert reply.update.rows == {} == reply.update.layers


@pytest.mark.parametrize("kind", ["share", "train", "unmask"])
def test_a_node_that_drops_out_at_any_leg_does_not_matter_to_the_others(random_split, tmp_path, monkeypatch, kind):
    hurry(monkeypatch)
    data, seed = random_split(users=6, items=40).data, 5
    made = prepared(tmp_path / "run", data, nodes=6, rounds=2, settings=SMALL, channel=SECURE, minimum=3, seed=seed)
    fault = SILENT if kind == "train" else LOST
    away = {(1, kind, 1), (4, kind, 1)}
    result = federation(made.run, lambda node, each, round_: fault if (node, each, round_) in away else NONE)
    assert result["rounds"] == 2 and made.events("lost") == []
    # In round 1 those two are in the sum only if they left at its end; in round 2 they are skipped.
    method, devices = made.config.build(), Devices.of(leave_one_out(data, seed), False)
    state = State.start(method, data.n_items, data.n_users, seed)
    everyone, others = torch.arange(6), torch.tensor([0, 2, 3, 5])
    link = made.config.link(method)
    if kind == "train":  # they have learned, and nobody heard of it
        learn(method, state, devices, torch.tensor([1, 4]), seed, 1, link.channel, lambda update, users: None)
    play(method, state, devices, everyone if kind == "unmask" else others, seed, 1, link=link)
    play(method, state, devices, others, seed, 2, link=link)
    items = shared_after(made.run)["shared:items"]
    assert (items - state.shared["items"]).norm() <= 1e-3 * items.norm()


def test_a_round_with_too_few_nodes_is_lost_and_the_next_one_goes_on(federation, random_split):
    def faults(node, kind, round_):
        return SILENT if (kind, round_) == ("train", 2) and node else NONE

    made = federation(
        random_split().data, nodes=4, rounds=4, settings=SMALL, channel=SECURE, faults=faults, deadline=0.5
    )
    result = made.serve()
    assert [line["round"] for line in made.events("lost")] == [2]
    lines = [json.loads(line) for line in (made.run / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4] and lines[1]["loss"] is None and lines[1]["valid"] == {}
    assert result["best_round"] != 2
    assert "<svg" in (made.run / "report.html").read_text()


def test_three_lost_rounds_in_a_row_end_the_run_with_one_line(federation, random_split):
    made = federation(
        random_split().data, nodes=4, rounds=9, settings=SMALL, channel=SECURE, deadline=0.5,
        faults=lambda node, kind, round_: SILENT if kind == "train" and round_ > 1 else NONE,
    )  # fmt: skip
    with pytest.raises(UserError, match="round 4: 0 devices answered, 3 are needed, 3 rounds in a row"):
        made.serve()


def test_a_server_that_is_killed_loses_one_round_and_goes_on(federation, random_split, monkeypatch):
    made = federation(random_split().data, nodes=4, rounds=4, settings=SMALL, channel=SECURE)

    class Killed(BaseException):
        pass

    def settle(*values, **named):
        if made.events("round") and not killed:
            killed.append(True)
            raise Killed
        return real(*values, **named)

    real, killed = server_module.settle, []
    monkeypatch.setattr(server_module, "settle", settle)
    with pytest.raises(Killed):
        made.serve()
    result = made.serve()
    assert result["rounds"] == 4
    assert [line["round"] for line in made.events("lost")] == [2]  # its devices have answered, and do not again


def test_only_the_nodes_of_a_round_are_asked_for_keys(federation, random_split):
    made = federation(
        random_split(users=12).data, nodes=12, rounds=4, settings=SMALL, channel=SECURE, target=9, minimum=8
    )
    assert made.serve()["rounds"] == 4
    asked = [(line["kind"], line["round"], line["devices"]) for line in made.events("asked")]
    assert asked[0] == ("query", 1, 12)
    rounds = asked[1 : [kind for kind, _, _ in asked].index("evaluate") - 2]  # before the last evaluation
    assert all(count <= 9 for _, _, count in rounds)
    assert {kind for kind, _, _ in rounds} == {"query", "share", "train", "unmask"}


def test_what_is_not_a_number_is_never_kept(federation, random_split, monkeypatch):
    made = federation(random_split().data, nodes=4, rounds=3, settings=SMALL, channel=SECURE)
    real = server_module.settle

    def settle(method, state, *values, **named):
        report = real(method, state, *values, **named)
        if made.events("round") and not made.events("lost"):
            state.shared["items"][0, 0] = torch.inf
        return report

    monkeypatch.setattr(server_module, "settle", settle)
    assert made.serve()["rounds"] == 3
    assert [line["reason"] for line in made.events("lost")] == ["the new shared parameters are not numbers"]
    assert all(value.isfinite().all() for value in shared_after(made.run).values())


def test_there_is_an_alarm_when_learning_diverges(federation, random_split):
    wild = {"dim": 4, "item_lr_factor": 80.0, "lr": 1.0}
    made = federation(random_split().data, nodes=4, rounds=4, settings=wild, channel=("secure-sum:most=1e6",))
    result = made.serve()
    reasons = " ".join(line["reason"] for line in made.events("alarm"))
    assert "the loss is" in reasons
    assert result["rounds"] == 4


@pytest.mark.thorough
@pytest.mark.parametrize("nodes", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_a_small_federation_learns_with_default_settings(random_split, tmp_path, monkeypatch, nodes):
    """Steps are chosen for hundreds of devices; a mean over two must not overshoot."""
    hurry(monkeypatch)
    data = random_split(users=nodes, items=60, least=8, most=12).data
    made = prepared(tmp_path / "run", data, "pfedrec", nodes=nodes, rounds=16, channel=SECURE, counted=100)
    federation(made.run)
    losses = [json.loads(line)["loss"] for line in (made.run / "rounds.jsonl").read_text().splitlines()]
    assert losses[-1] < 0.7 * losses[0]
    assert max(np.diff(losses)) < 0.1 * losses[0]
    assert made.events("alarm") == [] == made.events("lost")
    assert float(shared_after(made.run)["shared:items"].abs().max()) < 50
