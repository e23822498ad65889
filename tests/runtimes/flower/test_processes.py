"""Federations of real processes: a server, nodes, TLS, admitted keys; and what goes wrong with them."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="pip install federec[flower]")

from tests.network.compare import assert_same, shared_after
from tests.network.traffic import Secrets, recorded, search

from federec.cohort.draw import Devices
from federec.data.split import leave_one_out
from federec.errors import UserError
from federec.federation.round import play
from federec.federation.state import State
from federec.network.catalogue import Catalogue
from federec.network.device_folder import DeviceFolder
from federec.network.keys import Key
from federec.network.policy import Policy
from federec.network.settings import EVENTS, FederationSettings, prepare
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder
from federec.runtimes.flower.up import Federation, follow
from federec.runtimes.local import run as run_locally

ROOT = Path(__file__).parents[3]
LIMIT = 300
MARK = "FEDEREC_TEST_OF"
SMALL = {"dim": 4, "item_lr_factor": 1.0}


def processes(folder):
    """Numbers of those that belong to the federation in a folder, which `up` was told in its environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={folder.resolve()}\0".encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def assert_gone(folder):
    limit = time.monotonic() + 15
    while processes(folder) and time.monotonic() < limit:
        time.sleep(0.2)
    assert processes(folder) == []


def events(folder, kind=None):
    file = folder / EVENTS
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [line for line in lines if kind in (None, line["event"])]


def taken_in(folder, round_):
    """Users of each reply that became part of a round: those of its last try."""
    taken = []
    for line in events(folder):
        if line["event"] in ("start", "again") and line["round"] == round_:
            taken = []
        if line["event"] == "reply" and line["kind"] == "train" and line["round"] == round_:
            taken.append(line["users"])
    return taken


def up(out, *arguments):
    command = [sys.executable, "-m", "federec", "federation", "up", *map(str, arguments)]
    environ = os.environ | {MARK: str(out.resolve())}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


def until(process, ready):
    """Wait for something, as long as the process lives."""
    limit = time.monotonic() + LIMIT
    while not ready():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.05)


def write_ratings(path, users=24, items=60):
    draw = np.random.default_rng(1)
    rows = [
        f"u{user},i{item},{place}" for user in range(users) for place, item in enumerate(draw.permutation(items)[:9])
    ]
    path.write_text("\n".join(["user,item,timestamp", *rows]) + "\n")
    return path


MINE = """
import federec as fr


class Mine(fr.PFedRec):
    def item_rate(self, n_items):
        return super().item_rate(n_items) / 2
"""


@pytest.mark.slow
def test_up_with_a_method_of_ones_own_stopped_by_ctrl_c_and_resumed_ends_as_a_local_run(tmp_path):
    out, data = tmp_path / "run", write_ratings(tmp_path / "ratings.csv")
    (tmp_path / "mine.py").write_text(MINE)
    small = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    given = ["--devices", 3, "--data", data, "--method", f"{tmp_path / 'mine.py'}:Mine", "--rounds", 40, *small]
    given += ["--stage", "none"]  # in the clear a round that was under way is asked for again; a hidden one is lost
    process = up(
        out, *given, "--network", "metrics_port=0", "--network", "grace=60", "--network", "counted=1", "--out", out
    )
    try:
        until(process, lambda: events(out, "round"))
        port = events(out, "start")[0]["metrics"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            figures = answer.read().decode()
        assert processes(out)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert 'federec_bytes_total{direction="up"}' in figures
    assert "\nfederec_devices 3\n" in figures
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == f"stopped; continue with: federec federation up --resume {out}"
    assert "Traceback" not in errors
    assert_gone(out)
    process = up(out, "--resume", out, "-q")
    try:
        said, errors = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "test, sampled: against fewer than 99 items" in said
    assert_gone(out)
    config = RunFolder(out).config()
    assert json.loads((out / "result.json").read_text())["method"] == "mine"
    run_locally(config, config.load(), RunFolder(tmp_path / "local"))
    assert_same(out, tmp_path / "local")


@pytest.mark.slow
def test_up_with_a_robust_aggregator_ends_as_a_local_run(tmp_path):
    out, data = tmp_path / "run", write_ratings(tmp_path / "ratings.csv", users=4, items=20)
    given = ["--data", data, "--method", "fedmf", "--rounds", 2, "--set", "dim=4", "--set", "item_lr_factor=1"]
    given += ["--stage", "none", "--aggregator", "median", "--network", "counted=1", "--network", "grace=60"]
    process = up(out, *given, "--devices", 4, "-q", "--out", out)
    try:
        _, errors = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    config = RunFolder(out).config()
    assert config.aggregator == "median"
    run_locally(config, config.load(), RunFolder(tmp_path / "local"))
    assert_same(out, tmp_path / "local")


NAMES = ["good", "better", "damaged", "killed", "nan"]


@pytest.fixture
def population(tmp_path, random_split):
    """Nodes with different numbers of users, so that replies can be told apart: NAMES[i] hosts i + 2."""
    counts = np.arange(len(NAMES)) + 2
    data = random_split(users=int(counts.sum()), items=60, least=5).data
    users = dict(zip(NAMES, np.split(np.arange(counts.sum()), counts.cumsum()[:-1]), strict=True))
    for name, codes in users.items():
        DeviceFolder.share(tmp_path / name, Key.new_file(tmp_path / f"{name}.key"), data, codes.tolist()).close()
    return data, users


@pytest.fixture
def spawn():
    """Start a module as a process, which is stopped after the test."""
    started = []

    def start(module, *arguments):
        words = [sys.executable, "-m", module, *map(str, arguments)]
        started.append(subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.wait(timeout=30)


def test_over_tls_with_keys_nodes_and_the_server_are_killed_and_it_ends_as_a_local_run(tmp_path, population, spawn):
    data, hosted = population
    config = RunConfig.checked(method="pfedrec", settings=SMALL, data="small", rounds=3, seed=9, channel=())
    out = tmp_path / "run"
    prepare(
        out,
        config,
        FederationSettings.checked(grace=60.0, expected=len(NAMES), minimum=2, deadline=12.0, record=True, counted=1),
        Catalogue.of(data),
    )
    with Federation(out) as federation:
        federation.serve()
        keys = {name: (tmp_path / name, tmp_path / f"{name}.key") for name in NAMES}
        for name in NAMES:
            federation.admit(name, *keys[name])
            with closing(DeviceFolder.open(keys[name][0], Key.file(keys[name][1]))) as folder:
                folder.pin(Policy.of(config, 1))
        where, root = f"127.0.0.1:{federation.port}", out / "tls" / "ca.crt"
        asked = tmp_path / "asked-killed"
        spawn("tests.runtimes.flower.rogue", "nan", where, *keys["nan"], root)
        killed = spawn("tests.runtimes.flower.rogue", asked, where, *keys["killed"], root)
        better = keys["better"]  # as on a machine of its own
        given = ["federation", "join", where, "--folder", better[0], "--key", better[1], "--root", root]
        spawn("federec", *given)
        federation.node("damaged", *keys["damaged"])
        log = out / "logs" / "damaged.log"
        until(federation.server, lambda: log.exists() and "connected" in log.read_text())
        vault = tmp_path / "damaged" / "device.db"
        vault.write_bytes(vault.read_bytes()[:2000] + bytes(3000) + vault.read_bytes()[5000:])
        federation.node("good", *keys["good"])
        follower = follow(out, federation)
        until(federation.server, asked.exists)
        killed.kill()
        for event in follower:
            if event["event"] == "round":
                break
        federation.stop_server(signal.SIGKILL)
        FederationSettings.read(out).model_copy(update={"expected": 2}).write(out)
        federation.serve()
        assert [*follow(out, federation, (out / EVENTS).stat().st_size)]
        second = subprocess.run(
            [sys.executable, "-m", "federec", *map(str, given)], capture_output=True, text=True, timeout=60
        )
    assert second.returncode == 2
    assert "takes part already" in second.stderr

    # The right rounds, each rejection counted.
    assert [line["round"] for line in map(json.loads, (out / "rounds.jsonl").read_text().splitlines())] == [1, 2, 3]
    first, again = (line["round"] for line in events(out, "start"))
    assert (first, again) in ((1, 2), (1, 3))  # it may have come to the end of a round before the signal
    assert "Traceback" not in (out / "logs" / "good.log").read_text() + (out / "logs" / "server.log").read_text()
    assert {line["reason"] for line in events(out, "rejected") if line["round"] == 1} >= {"non-finite", "failed"}

    # What the server made of it is what a local run makes of the same devices.
    users = {len(codes): torch.from_numpy(codes) for codes in hosted.values()}
    devices, method = Devices.of(leave_one_out(data, 9), False), config.build()
    state = State.start(method, data.n_items, data.n_users, 9)
    for round_ in (1, 2, 3):
        taken = taken_in(out, round_)
        assert set(taken) == {len(hosted["good"]), len(hosted["better"])}
        play(method, state, devices, torch.cat([users[count] for count in taken]), 9, round_)
    items = shared_after(out)["shared:items"]
    assert (items - state.shared["items"]).norm() <= 1e-3 * items.norm()

    # No private state was lost, and nothing private was received.
    secrets = Secrets(data.n_items)
    for name in ("good", "better"):
        folder = DeviceFolder.open(tmp_path / name, Key.file(tmp_path / f"{name}.key"))
        start = State.start(method, data.n_items, len(hosted[name]), 9)
        assert folder.head.round == 3
        own = folder.after(folder.head.run, 3, start)
        for key, value in own.private.items():
            assert torch.allclose(value, state.private[key][torch.from_numpy(hosted[name])], rtol=1e-3, atol=1e-5)
        secrets.learn(folder, start)
    with pytest.raises(UserError, match="damaged"):
        DeviceFolder.open(tmp_path / "damaged", Key.file(tmp_path / "damaged.key"))
    messages = recorded(out / "received")
    assert len(messages) >= 10
    assert search(messages, secrets) == []
