"""Attacks on a federation of real processes: an outsider who has the root's certificate, a local user without rights,
and a device that was admitted and is up to no good. The honest devices' run goes on, and ends as a local run does."""

import json
import multiprocessing
import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from tests.network.compare import assert_same
from tests.runtimes.flower.fleet import Device
from tests.runtimes.flower.test_processes import SMALL, events, processes, until, up, write_ratings

from federec.network.catalogue import Catalogue
from federec.network.certificates import Identity
from federec.network.device_folder import DeviceFolder, share_out
from federec.network.keys import Key
from federec.network.settings import FederationSettings, prepare
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder
from federec.runtimes.flower.up import Federation, follow
from federec.runtimes.local import run as run_locally

pytestmark = pytest.mark.thorough
NOBODY = 65534


@pytest.fixture
def public_place():
    """A folder that every user of the machine can enter, unlike those of tests."""
    place = Path(tempfile.mkdtemp(prefix="federec-test-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def prepared(place, rounds, deadline=60.0):
    """The folder of a federation of three devices, as `up` makes it. Every round waits until all three are there."""
    data = RunConfig.checked(data=str(write_ratings(place / "ratings.csv"))).load()
    config = RunConfig.checked(method="pfedrec", settings=SMALL, data=data.origin["data"], rounds=rounds, channel=())
    # As long a grace as the deadline: on a busy machine an honest device may be slow, and a local run waits for it.
    settings = FederationSettings.checked(minimum=3, deadline=deadline, grace=deadline, counted=1)
    prepare(place / "run", config, settings, Catalogue.of(data))
    share_out(place / "run", data, 3)
    return place / "run"


def assert_as_local(out, place):
    config = RunFolder(out).config()
    run_locally(config, config.load(), RunFolder(place / "local"))
    assert_same(out, place / "local")


@pytest.mark.slow  # test_gate.py refuses strangers in one process
def test_an_outsider_with_the_root_certificate_can_do_nothing(public_place):
    out = prepared(public_place, rounds=4)
    home, root = public_place / "outsider", out / "tls" / "ca.crt"
    with Federation(out) as federation:
        federation.serve()
        address = f"127.0.0.1:{federation.port}"
        until(federation.server, lambda: answers(federation.port))
        assert flower_refused(home, address, root, public_place) == [1, 1, 1]
        stranger = Device(f"https://{address}", Identity.new(), ssl.create_default_context(cafile=root))
        for _, path in PROTOBUF_REQUEST_TYPES:
            assert stranger.post(path.removeprefix("/v1/"), b"").status_code in (401, 404)
        activate = ActivateNodeRequest(public_key=stranger.public, heartbeat_interval=30)
        register = RegisterNodeFleetRequest(public_key=stranger.public)
        assert stranger.post("fleet/register-node", register).status_code == 404
        assert stranger.post("fleet/activate-node", activate).status_code == 401
        with closing(opened(out, 0)) as folder:
            victim = Device(stranger.address, folder.identity).node
        assert stranger.pull(victim)[0].status_code == 401
        assert stranger.push(stranger.message(1, "ab" * 32, source=victim.node_id), victim).status_code == 401
        with pytest.raises(httpx.TransportError):  # without TLS
            httpx.post(f"http://{address}/v1/fleet/activate-node", content=b"")
        start_nodes(federation, out)
        assert [*follow(out, federation)][-1]["event"] == "finished"
    assert not (public_place / "executed").exists()
    refusals = [line for line in audit(out) if line["event"] == "refused"]
    assert {line["why"] for line in refusals} >= {"this device was not admitted, or was removed"}
    assert events(out, "rejected") == []
    assert_as_local(out, public_place)


APP = """[project]
name = "evil"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "evil"
[tool.flwr.app.components]
serverapp = "evil:server"
clientapp = "evil:client"
"""

EVIL = """from pathlib import Path
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
Path("{mark}").touch()
server, client = ServerApp(), ClientApp()
"""


def flower_refused(home, address, root, place):
    """Exit codes of Flower's own commands against a server: to run an app there, and to list runs and nodes."""
    app = place / "evil"
    app.mkdir()
    home.mkdir()
    (app / "pyproject.toml").write_text(APP)
    (app / "evil.py").write_text(EVIL.format(mark=place / "executed"))
    (home / "config.toml").write_text(
        f"[superlink]\ndefault = 'it'\n[superlink.it]\naddress = '{address}'\nroot-certificates = '{root}'\n"
    )
    environ = os.environ | {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    command = Path(sys.executable).with_name("flwr")
    tries = (["run", app, "it"], ["list", "it"], ["supernode", "list", "it"])
    running = [
        subprocess.Popen([command, *words], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for words in tries
    ]
    return [min(1, process.wait(timeout=60)) for process in running]


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def opened(out, number):
    name = f"device-{number}"
    return DeviceFolder.open(out / "devices" / name, Key.file(out / "secrets" / name))


def start_nodes(federation, out, numbers=(0, 1, 2)):
    for number in numbers:
        name = f"device-{number}"
        federation.node(name, out / "devices" / name, out / "secrets" / name)


def audit(out):
    return [json.loads(line) for line in (out / "audit.jsonl").read_text().splitlines()]


# Another user of the same machine


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_local_user_can_do_nothing(public_place):
    (public_place / "open").write_text("everybody may read this")
    out, data = public_place / "run", write_ratings(public_place / "ratings.csv")
    process = up(out, "--devices", 3, "--data", data, "--rounds", 100, "--out", out)
    try:
        until(process, lambda: len(events(out, "round")) > 1)
        ours = processes(out)
        files = [path for path in [out, *out.rglob("*")] if path.exists()]
        assert {"audit.jsonl", "events.jsonl", "device.db", "server.key", "ca.key"} <= {path.name for path in files}
        listens = {port for pid in ours for port in listening_ports(pid)}
        sockets = {path for pid in ours for path in unix_sockets(pid)}
        with multiprocessing.get_context("fork").Pool(1) as pool:
            found = pool.apply(as_nobody, (files, ours, sorted(listens), public_place / "open"))
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate(timeout=60)
    assert len(ours) >= 5  # up, its server, the process that nodes are forked from, and three nodes
    assert found == {"control": "everybody may read this", "read": [], "signalled": [], "answers": [404, 404, 404, 401]}
    assert len(listens) == 1
    for path in sockets:
        assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700 if Path(path).parent.exists() else True


def as_nobody(files, pids, ports, control):
    """What a user without rights gets: which files it can read, whom it can signal, what the port says."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    read, signalled, answers = [], [], []
    more = [Path(f"/proc/{pid}/{name}") for pid in pids for name in ("environ", "mem", "maps")]
    for path in [*files, *more]:
        with suppress(OSError):
            found = list(path.iterdir()) if path.is_dir() else path.read_bytes()[:1]
            read += [str(path)] if found else []
    for pid in pids:
        with suppress(PermissionError):
            os.kill(pid, 0)
            signalled.append(pid)
    device = Device(f"https://127.0.0.1:{ports[0]}", Identity.new(), verify=False)
    for path in ("control/list-runs", "runtime/acquire-task", "fleet/get-fab", "fleet/pull-messages"):
        answers.append(device.post(path, b"").status_code)
    return {"control": control.read_text(), "read": read, "signalled": signalled, "answers": answers}


def inodes(pid):
    found = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            target = str(handle.readlink())
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def listening_ports(pid):
    """TCP ports, on which a process listens."""
    mine = inodes(pid)
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in mine:
                yield int(words[1].rpartition(":")[2], 16)


def unix_sockets(pid):
    """Paths of unix sockets on which a process listens."""
    mine = inodes(pid)
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if words[6] in mine and len(words) > 7 and int(words[3], 16) & 0x10000:
            yield words[7]


# A device that was admitted


@pytest.mark.slow  # tests/attacks/test_malicious_device.py tries more, in one process
def test_a_malicious_device_neither_ends_nor_slows_a_run(public_place):
    out = prepared(public_place, rounds=4, deadline=10.0)
    with Federation(out) as federation:
        rogue_identity = Identity.new()
        certificate = federation.authority.admit(rogue_identity.request(), 1)
        (out / "nodes" / "rogue.crt").write_bytes(certificate)
        federation.serve()
        until(federation.server, lambda: answers(federation.port))
        context = ssl.create_default_context(cafile=out / "tls" / "ca.crt")
        rogue = Device(f"https://127.0.0.1:{federation.port}", rogue_identity, context)
        stop = threading.Event()
        attacks = [garbage, huge, flood, slow, forged]
        threads = [threading.Thread(target=attack, args=(rogue, federation.port, context, stop)) for attack in attacks]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        start_nodes(federation, out)
        try:
            assert [*follow(out, federation)][-1]["event"] == "finished"
            took = time.monotonic() - began
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
    assert took < 120
    rounds = [line["seconds"] for line in events(out, "round")]
    assert len(rounds) == 4
    assert max(rounds[1:]) < 10.0 + 3.0  # never slower than the deadline
    assert_as_local(out, public_place)


def garbage(rogue, port, context, stop):
    """Requests and replies that are none. It has also joined, so that it is asked, and answers with noise."""
    while not stop.wait(0.2):
        with suppress(httpx.HTTPError):
            rogue.activate()
            rogue.post("fleet/push-messages", os.urandom(1000))
            rogue.post("fleet/pull-messages", os.urandom(100))


def huge(rogue, port, context, stop):
    while not stop.wait(2.0):
        with suppress(httpx.HTTPError, ssl.SSLError):
            rogue.post("fleet/push-messages", bytes(80 << 20))


def flood(rogue, port, context, stop):
    with httpx.Client(verify=context) as client:
        while not stop.wait(0.01):
            with suppress(httpx.HTTPError):
                client.post(f"{rogue.address}/v1/fleet/send-node-heartbeat", content=b"", headers=rogue.headers())


def slow(rogue, port, context, stop):
    """Connections that are left half-open."""
    held = []
    for number in range(100):
        with suppress(OSError):
            held.append(socket.create_connection(("127.0.0.1", port)))
            if number % 2:
                held[-1] = context.wrap_socket(held[-1], server_hostname="localhost")
                held[-1].sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nX: ")
    stop.wait()
    for connection in held:
        connection.close()


def forged(rogue, port, context, stop):
    """Replies to what it was never asked, and orders to others."""
    while not stop.wait(0.2):
        with suppress(httpx.HTTPError):
            rogue.push(rogue.message(1, os.urandom(32).hex()))
            rogue.push(rogue.message(1, "", source=1, target=12345))
