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

from tests.runtimes.flower.compare import assert_same, shared_after
from tests.runtimes.flower.traffic import Secrets, recorded, search

from federec.cohort.draw import Devices
from federec.data.split import leave_one_out
from federec.errors import UserError
from federec.federation.round import learn, play
from federec.federation.state import State
from federec.network.catalogue import Catalogue
from federec.network.device_folder import DeviceFolder
from federec.network.keys import Key
from federec.network.settings import EVENTS, FederationSettings, prepare
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder
from federec.runtimes.flower.up import Federation, bring_up, follow, free_port, share_out
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


def test_five_devices_over_tls_learn_what_a_local_run_learns(tmp_path):
    out = tmp_path / "run"
    process = up(
        "--devices", 5, "--rounds", 5, "--seed", 3, "--tls", "--auth", "--network", "metrics_port=0", "--out", out
    )
    try:
        until(process, lambda: events(out, "round"))
        port = events(out, "start")[0]["metrics"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            figures = answer.read().decode()
        said, errors = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "test, against 99 items" in said
    assert 'federec_bytes_total{direction="up"}' in figures
    assert "\nfederec_devices 5\n" in figures
    assert_gone(out)
    assert events(out, "rejected") == events(out, "missing") == []
    config = RunConfig.checked(method="pfedrec", data="tastes", rounds=5, seed=3, engine="torch")
    run_locally(config, config.load(), RunFolder(tmp_path / "local"))
    assert_same(out, tmp_path / "local")


def write_ratings(path, users=24, items=60):
    draw = np.random.default_rng(1)
    rows = [
        f"u{user},i{item},{place}" for user in range(users) for place, item in enumerate(draw.permutation(items)[:9])
    ]
    path.write_text("\n".join(["user,item,timestamp", *rows]) + "\n")
    return path


def test_stopped_by_ctrl_c_and_resumed_it_ends_the_same(tmp_path):
    out, data = tmp_path / "run", write_ratings(tmp_path / "ratings.csv")
    small = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    process = up("--devices", 2, "--data", data, "--rounds", 3, *small, "--out", out)
    try:
        until(process, lambda: events(out, "round"))
        assert processes(out)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors.splitlines()[-1] == f"stopped; continue with: federec federation up --resume {out}"
    assert "Traceback" not in errors
    assert_gone(out)
    process = up("--resume", out, "-q")
    try:
        _, errors = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert_gone(out)
    config = RunFolder(out).config()
    run_locally(config, config.load(), RunFolder(tmp_path / "local"))
    assert_same(out, tmp_path / "local")


MISBEHAVING = {"nan": "non-finite", "shape": "shape", "norm": "norm", "catalogue": "catalogue"}
NAMES = ["good", "better", "damaged", "silent", "killed", *MISBEHAVING]


@pytest.fixture
def population(tmp_path, random_split):
    """Devices with different numbers of users, so that replies can be told apart: NAMES[i] hosts i + 2."""
    counts = np.arange(len(NAMES)) + 2
    data = random_split(users=int(counts.sum()), items=60, least=5).data
    shares = dict(zip(NAMES, np.split(np.arange(counts.sum()), counts.cumsum()[:-1]), strict=True))
    for name, users in shares.items():
        DeviceFolder.share(tmp_path / name, Key.new_file(tmp_path / f"{name}.key"), data, users.tolist()).close()
    return data, shares


def test_everything_that_goes_wrong_with_devices_and_the_server(tmp_path, population, monkeypatch):
    data, shares = population
    config = RunConfig.checked(method="pfedrec", settings=SMALL, data="small", rounds=4, seed=9)
    out = tmp_path / "run"
    settings = FederationSettings.checked(expected=len(NAMES) - 1, minimum=2, deadline=40.0, most_norm=1e6, record=True)
    prepare(out, config, settings, Catalogue.of(data), client="tests.runtimes.flower.misbehave:app")
    vault = tmp_path / "damaged" / "device.db"
    vault.write_bytes(vault.read_bytes()[:2000] + bytes(3000) + vault.read_bytes()[5000:])
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)

    with Federation(out, tls=True, auth=True) as federation:

        def node(name, *extra, **environ):
            federation.node(name, tmp_path / name, tmp_path / f"{name}.key", *extra, **environ)

        federation.warm_up()
        federation.superlink()
        for name in NAMES:
            federation.register(name)
            bad = {"silent": str(tmp_path / "asked-silent"), "killed": str(tmp_path / "asked-killed")}
            if name == "better":  # as on a machine of its own
                join(federation, tmp_path / name)
            else:
                node(name, MISBEHAVE=bad.get(name, name if name in MISBEHAVING else ""))
        federation.run(out)
        follower = follow(out, federation, ("superlink",))
        # Three who have no business here: one with somebody else's key, one with none that is known, one without TLS.
        intruders(federation, tmp_path)
        until(federation.processes["superlink"], (tmp_path / "asked-killed").exists)
        federation.stop("killed", how=signal.SIGKILL)
        for event in follower:
            if event["event"] == "round" and event["round"] == 2:
                break
        os.kill(events(out, "start")[0]["pid"], signal.SIGKILL)
        federation.stop("superlink", "silent", how=signal.SIGKILL)
        # Nobody is silent from here on, and who lost the SuperLink may wait for a minute before looking for it again.
        later = {"expected": len(NAMES) - 2, "deadline": float(LIMIT)}
        FederationSettings.read(out).model_copy(update=later).write(out)
        federation.superlink()
        revive(federation, "killed", node)  # was away for a round, and comes back
        federation.run(out)
        assert [*follow(out, federation, ("superlink",), (out / EVENTS).stat().st_size)]
        refused = {name: federation.processes[name].poll() for name in ("twin", "stranger", "plain")}
    assert_gone(out)
    assert refused["twin"] == refused["stranger"] == 1
    for name in ("twin", "stranger", "plain"):
        assert "SuperNode ID" not in (out / "logs" / f"{name}.log").read_text()

    # The right rounds, each rejection counted.
    assert [line["round"] for line in map(json.loads, (out / "rounds.jsonl").read_text().splitlines())] == [1, 2, 3, 4]
    first, again = (line["round"] for line in events(out, "start"))
    assert (first, again) in ((1, 3), (1, 4))  # it may have come to the end of a round before the signal
    reasons = {line["reason"] for line in events(out, "rejected") if line["round"] == 1}
    assert reasons >= {*MISBEHAVING.values(), "failed"}
    assert len({line["device"] for line in events(out, "reply")}) == len(NAMES) - 1
    assert len([line for line in events(out, "missing") if line["round"] == 1]) in (1, 2)  # silent; killed, or failed

    # What the server made of it is what a local run makes of the same devices.
    users = {len(codes): torch.from_numpy(codes) for codes in shares.values()}
    devices, method = Devices.of(leave_one_out(data, 9), False), config.build()
    state = State.start(method, data.n_items, data.n_users, 9)
    learn(method, state, devices, users[len(shares["killed"])], 9, 1)  # it did learn, though nobody heard of it
    for round_ in range(1, 5):
        taken = taken_in(out, round_)
        assert {len(shares["good"]), len(shares["better"])} <= set(taken)
        assert not {len(shares[name]) for name in (*MISBEHAVING, "damaged", "silent")} & set(taken)
        assert (len(shares["killed"]) in taken) == (round_ >= again)
        play(method, state, devices, torch.cat([users[count] for count in taken]), 9, round_)
    items = shared_after(out)["shared:items"]
    assert (items - state.shared["items"]).norm() <= 1e-3 * items.norm()

    # No private state was lost, and nothing private was received.
    secrets = Secrets(data.n_items)
    for name in ("good", "better", "killed"):
        store = DeviceFolder.open(tmp_path / name, Key.file(tmp_path / f"{name}.key"))
        start = State.start(method, data.n_items, len(shares[name]), 9)
        assert store.head.round == 4
        own = store.after(store.head.run, 4, start)
        for key, value in own.private.items():
            assert torch.allclose(value, state.private[key][torch.from_numpy(shares[name])], rtol=1e-3, atol=1e-5)
        secrets.learn(store, start)
    with pytest.raises(UserError, match="damaged"):
        DeviceFolder.open(tmp_path / "damaged", Key.file(tmp_path / "damaged.key")).verify()
    messages = recorded(out / "received")
    assert len(messages) >= 12
    assert search(messages, secrets) == []


def test_under_secure_aggregation_the_server_process_receives_sums_alone(tmp_path):
    out, data = tmp_path / "run", RunConfig.checked(data=str(write_ratings(tmp_path / "ratings.csv"))).load()
    config = RunConfig.checked(method="pfedrec", settings=SMALL, data="small", rounds=1, seed=4)
    prepare(
        out, config, FederationSettings.checked(expected=3, minimum=3, secure=True, record=True), Catalogue.of(data)
    )
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
        alone = learn(
            method, State.start(method, data.n_items, data.n_users, 4), devices, torch.tensor(store.slots), 4, 1
        )
        total = alone.mean.total["items"]
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
    from federec.runtimes.flower.certificates import node_key

    keys = federation.home / "keys"
    (keys / "twin").write_bytes((keys / "good").read_bytes())
    (keys / "twin").chmod(0o600)
    node_key(keys / "stranger")
    for name in ("twin", "stranger"):
        federation.node(name, folder / "good", folder / "good.key", "--max-retries", "3")
    address = f"127.0.0.1:{federation.port}"
    command = (federation.command("flower-supernode"), "--insecure", "--superlink", address, "--max-retries", "3")
    federation.start("plain", *command, "--port", str(free_port()))


def revive(federation, name, start):
    """Start a device again that was killed; the SuperLink lets it in when it has missed its heartbeats."""
    log = federation.home / "logs" / f"{name}.log"
    limit = time.monotonic() + 120
    while time.monotonic() < limit:
        begin = log.stat().st_size
        start(name)
        while federation.processes[name].poll() is None:
            if "SuperNode ID" in log.read_text()[begin:]:
                return
            time.sleep(0.1)
        federation.stop(name)
    raise AssertionError(f"{name} was not let in")
