"""A federation of many nodes in one process, with everything that can go wrong going wrong."""

import json
import time

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography", reason="pip install federec[flower]")

from tests.attacks.hostile import prepared
from tests.network.compare import assert_same, shared_after
from tests.network.federated import federated, hurry

from federec.cohort.draw import Devices
from federec.data.split import leave_one_out
from federec.federation.channel import Channel
from federec.federation.device import learn
from federec.federation.round import play
from federec.federation.state import State
from federec.runs.folder import RunFolder
from federec.runtimes.in_process import (
    CRASH_AFTER,
    CRASH_BEFORE,
    LOST,
    NONE,
    OLD,
    SILENT,
    TRUNCATED,
    TWICE,
    Fault,
    federation,
)
from federec.runtimes.local import run as run_locally

LATE = Fault(delay=1)
REASONS = {TRUNCATED: "malformed", OLD: "version", LATE: "late", CRASH_BEFORE: "failed", CRASH_AFTER: "failed"}
LEARNS = (SILENT, CRASH_AFTER, TRUNCATED, OLD, LATE)
"""Faults of nodes that learn a round without the server hearing of it."""
FAULTS = (LOST, TWICE, CRASH_BEFORE, *LEARNS)


def test_a_prepared_folder_is_played_as_a_local_run(random_split, tmp_path):
    data = random_split(users=9, items=40).data
    prepared = federated(tmp_path / "run", data, nodes=3, settings={"dim": 4, "item_lr_factor": 0.2})
    result = federation(prepared.run)
    assert result == json.loads((prepared.run / "result.json").read_text())
    run_locally(prepared.config, data, RunFolder(tmp_path / "local"))
    assert_same(prepared.run, tmp_path / "local")


def test_a_hundred_devices_of_which_a_third_fail_each_round(random_split, tmp_path, monkeypatch):
    """The server makes of the updates that it takes in what a local run makes of the same devices; and every device's
    private parameters are those of the rounds that it has learned, whether or not the server heard of them."""
    hurry(monkeypatch)
    count, rounds, seed = 100, 4, 5
    data = random_split(users=count, items=60, least=4, most=9).data
    how = {"settings": {"dim": 4, "item_lr_factor": 1.0}, "rounds": rounds, "seed": seed}
    run = federated(tmp_path / "run", data, nodes=count, minimum=20, deadline=0.2, **how)
    befallen = {}

    def faults(node, kind, round_):
        draw = np.random.default_rng([node, round_])
        if kind != "train" or draw.random() > 1 / 3:
            return NONE
        befallen[node, round_] = FAULTS[draw.integers(len(FAULTS))]
        return befallen[node, round_]

    result = federation(run.run, faults)
    assert (result["rounds"], result["communication"]["users_per_node"]) == (rounds, 1)
    assert set(befallen.values()) == set(FAULTS)
    assert run.events("again") == []

    # What was refused and what was missed is what went wrong.
    trained = [line for line in run.events("rejected") if (int(line["device"]), line["round"]) in befallen]
    refused = {(int(line["device"]), line["round"]): line["reason"] for line in trained}
    came = {key: fault for key, fault in befallen.items() if (fault, key[1]) != (LATE, rounds)}
    assert refused == {key: REASONS[fault] for key, fault in came.items() if fault in REASONS}
    missed = {(int(line["device"]), line["round"]) for line in run.events("missing")}
    assert missed == {key for key, fault in befallen.items() if fault in (LOST, SILENT, LATE)}

    # What was taken in is what a local run learns.
    method, devices = run.config.build(), Devices.of(leave_one_out(data, seed), False)
    state = State.start(method, data.n_items, data.n_users, seed)
    replies = [line for line in run.events("reply") if line["kind"] == "train"]
    for round_ in range(1, rounds + 1):
        taken = [int(line["device"]) for line in replies if line["round"] == round_]
        assert 20 <= len(taken) == len(set(taken))
        assert not {node for node in taken if befallen.get((node, round_), TWICE) != TWICE}
        unheard = [node for (node, number), fault in befallen.items() if number == round_ and fault in LEARNS]
        lost = torch.tensor(sorted(unheard))
        learn(method, state, devices, lost, seed, round_, Channel(), lambda update, users: None)
        play(method, state, devices, torch.tensor(sorted(taken)), seed, round_)
    items = shared_after(run.run)["shared:items"]
    assert (items - state.shared["items"]).norm() <= 1e-4 * items.norm()
    start = State.start(method, data.n_items, 1, seed)
    for node in range(0, count, 9):
        folder = run.folder(node)
        head = folder.head
        own = start if head is None else folder.after(head.run, head.round, start)
        for name, value in own.private.items():
            assert torch.allclose(value[0], state.private[name][node], rtol=1e-3, atol=1e-5)
        folder.close()


def test_twenty_four_devices_at_the_default_of_which_a_third_fail_at_any_leg(random_split, tmp_path, monkeypatch):
    """Secure sums come about with two thirds of the devices, whichever leg the others fail at."""
    hurry(monkeypatch)
    count, rounds = 24, 8
    data = random_split(users=count, items=60, least=4, most=9).data
    run = prepared(tmp_path / "run", data, nodes=count, rounds=rounds, deadline=5.0)
    failing, draw = {}, np.random.default_rng(7)

    def faults(node, kind, round_):
        """Every third device that begins a sum fails at one of its legs."""
        if kind == "share":
            begun = failing.setdefault(round_, {})
            begun[node] = None
            if len(begun) % 3 == 0:
                begun[node] = draw.choice(["share", "train", "unmask"])
        if failing.get(round_, {}).get(node) != kind:
            return NONE
        return (LOST, SILENT, CRASH_AFTER, TRUNCATED, OLD, LATE)[draw.integers(6)]

    began = time.monotonic()
    result = federation(run, faults)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert result["rounds"] == rounds
    assert sum(leg is not None for begun in failing.values() for leg in begun.values()) > 3 * rounds
    # A device that failed is skipped for two rounds, so that now and then fewer than the ten of a cohort are left.
    assert len([line for line in events if line["event"] == "lost"]) <= 3
    assert all(bool(value.isfinite().all()) for value in shared_after(run).values())
    assert time.monotonic() - began < 30
