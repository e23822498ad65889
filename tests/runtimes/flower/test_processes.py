"""Federations of real processes: SuperLink, SuperNodes, apps, TLS, registered keys; and what goes wrong with them."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="pip install federec[flower]")

from tests.network.compare import assert_same, shared_after
from tests.network.traffic import Secrets, recorded, search

from federec.aggregators.sum import Sum
from federec.cohort.draw import Devices
from federec.data.split import leave_one_out
from federec.errors import UserError
from federec.federation.channel import Channel
from federec.federation.device import learn
from federec.federation.round import play
from federec.federation.state import State
from federec.network.catalogue import Catalogue
from federec.network.device_folder import DeviceFolder, share_out
from federec.network.keys import Key
from federec.network.settings import EVENTS, FederationSettings
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder
from federec.runtimes.flower.app import prepare
from federec.runtimes.flower.up import Federation, bring_up, follow, free_port
from federec.runtimes.local import run as run_locally

ROOT = Path(__file__).parents[3]
LIMIT = 300
SMALL = {"dim": 4, "item_lr_factor": 1.0}


def processes(folder):
    """Those that belong to the federation in a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"FLWR_HOME={folder.resolve()}".encode() in entry.read_bytes():
                found.append((entry.parent / "cmdline").read_bytes())
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


def up(*arguments):
    command = [sys.executable, "-m", "federec", "federation", "up", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


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


def test_up_with_a_method_of_ones_own_stopped_by_ctrl_c_and_resumed_ends_as_a_local_run(tmp_path):
    out, data = tmp_path / "run", write_ratings(tmp_path / "ratings.csv")
    (tmp_path / "mine.py").write_text(MINE)
    small = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    given = ["--devices", 3, "--data", data, "--method", f"{tmp_path / 'mine.py'}:Mine", "--rounds", 2, *small]
    process = up(*given, "--tls", "--auth", "--network", "metrics_port=0", "--out", out)
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
    assert process.returncode == 130
    assert errors.splitlines()[-1] == f"stopped; continue with: federec federation up --resume {out}"
    assert "Traceback" not in errors
    assert_gone(out)
    process = up("--resume", out, "-q")
    try:
        said, errors = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "test, against 99 items" in said
    assert_gone(out)
    config = RunFolder(out).config()
    assert json.loads((out / "result.json").read_text())["method"] == "mine"
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


def test_over_tls_with_keys_nodes_and_the_server_are_killed_and_it_ends_as_a_local_run(
    tmp_path, population, monkeypatch
):
    data, hosted = population
    config = RunConfig.checked(method="pfedrec", settings=SMALL, data="small", rounds=3, seed=9)
    out = tmp_path / "run"
    settings = FederationSettings.checked(expected=len(NAMES) - 1, minimum=2, deadline=12.0, record=True)
    prepare(out, config, settings, Catalogue.of(data), client="tests.runtimes.flower.misbehave:app")
    vault = tmp_path / "damaged" / "device.db"
    vault.write_bytes(vault.read_bytes()[:2000] + bytes(3000) + vault.read_bytes()[5000:])
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)

    with Federation(out, tls=True, auth=True) as federation:
        federation.warm_up()
        federation.superlink()
        bad = {"killed": str(tmp_path / "asked-killed"), "nan": "nan"}
        for name in NAMES:
            federation.register(name)
            if name == "better":  # as on a machine of its own
                join(federation, tmp_path / name)
            else:
                federation.node(name, tmp_path / name, tmp_path / f"{name}.key", MISBEHAVE=bad.get(name, ""))
        # Three who have no business here: one with somebody else's key, one with none that is known, one without TLS.
        intruders(federation, tmp_path)
        federation.run(out)
        follower = follow(out, federation, ("superlink",))
        until(federation.processes["superlink"], (tmp_path / "asked-killed").exists)
        federation.stop("killed", how=signal.SIGKILL)
        for event in follower:
            if event["event"] == "round":
                break
        os.kill(events(out, "start")[0]["pid"], signal.SIGKILL)
        FederationSettings.read(out).model_copy(update={"expected": 2}).write(out)
        federation.run(out)
        assert [*follow(out, federation, ("superlink",), (out / EVENTS).stat().st_size)]
        refused = {name: federation.processes[name].poll() for name in ("twin", "stranger", "plain")}
    assert_gone(out)
    assert refused["twin"] == refused["stranger"] == 1
    for name in ("twin", "stranger", "plain"):
        assert "SuperNode ID" not in (out / "logs" / f"{name}.log").read_text()

    # The right rounds, each rejection counted.
    assert [line["round"] for line in map(json.loads, (out / "rounds.jsonl").read_text().splitlines())] == [1, 2, 3]
    first, again = (line["round"] for line in events(out, "start"))
    assert (first, again) in ((1, 2), (1, 3))  # it may have come to the end of a round before the signal
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


def test_under_secure_aggregation_the_server_process_receives_sums_alone(tmp_path):
    out, data = tmp_path / "run", RunConfig.checked(data=str(write_ratings(tmp_path / "ratings.csv"))).load()
    secure = ({"stage": "secure-sum"},)
    config = RunConfig.checked(method="pfedrec", settings=SMALL, data="small", rounds=1, seed=4, channel=secure)
    prepare(out, config, FederationSettings.checked(expected=3, minimum=3, record=True), Catalogue.of(data))
    share_out(out, data, 3)
    assert [*bring_up(out, tls=True, auth=True)][-1]["event"] == "finished"
    assert_gone(out)
    run_locally(config, data, RunFolder(tmp_path / "local"))
    assert_same(out, tmp_path / "local")
    devices, method = Devices.of(leave_one_out(data, 4), False), config.build()
    secrets = Secrets(data.n_items)
    for number in range(3):
        store = DeviceFolder.open(out / "devices" / f"device-{number}", Key.file(out / "secrets" / f"device-{number}"))
        secrets.learn(store, State.start(method, data.n_items, len(store.users), 4))
        alone, state = Sum(data.n_items), State.start(method, data.n_items, data.n_users, 4)
        users = torch.tensor(store.slots)
        learn(method, state, devices, users, 4, 1, Channel(), lambda update, users, alone=alone: alone.add(update))
        total = alone.total["items"]
        secrets.vectors += [total.flatten().numpy(), (total / len(store.users)).flatten().numpy()]
    messages = recorded(out / "received")
    assert len(messages) == 3 + 2 * 3 * 4  # who they are; a round and an evaluation, of four trips each
    assert search(messages, secrets) == []


def join(federation, device):
    command = [sys.executable, "-m", "federec", "federation", "join", f"127.0.0.1:{federation.port}"]
    options = {"--folder": device, "--key": device.with_suffix(".key"), "--root": federation.home / "tls" / "ca.crt"}
    options["--auth"] = federation.home / "keys" / device.name
    words = [word for option, value in options.items() for word in (option, str(value))]
    federation.start(device.name, *command, *words)


@pytest.mark.slow
def test_flowers_simulation_engine_runs_the_same_client_app_on_100_virtual_nodes(tmp_path):
    out, data = tmp_path / "run", RunConfig.checked(data=str(write_ratings(tmp_path / "ratings.csv", 200))).load()
    config = RunConfig.checked(method="pfedrec", settings=SMALL, data="small", rounds=2, seed=4)
    prepare(out, config, FederationSettings.checked(expected=100, deadline=300.0), Catalogue.of(data))
    share_out(out, data, 100)
    with Federation(out) as federation:
        federation.warm_up()
        federation.superlink(simulation=True)
        federation.run(out, "--federation-config", "num-supernodes=100 client-resources-num-cpus=1")
        assert [*follow(out, federation, ("superlink",))][-1]["event"] == "finished"
    assert_gone(out)
    run_locally(config, data, RunFolder(tmp_path / "local"))
    assert_same(out, tmp_path / "local")


def intruders(federation, folder):
    from federec.network.certificates import node_key

    keys = federation.home / "keys"
    (keys / "twin").write_bytes((keys / "good").read_bytes())
    (keys / "twin").chmod(0o600)
    node_key(keys / "stranger")
    for name in ("twin", "stranger"):
        federation.node(name, folder / "good", folder / "good.key", "--max-retries", "3")
    address = f"127.0.0.1:{federation.port}"
    command = (federation.command("flower-supernode"), "--insecure", "--superlink", address, "--max-retries", "3")
    federation.start("plain", *command, "--port", str(free_port()))
