"""A whole federation on this machine: a SuperLink, SuperNodes and a run, started together and stopped together."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import flwr  # noqa: F401  where it is missing, that is said before anything is written

from federec.errors import UserError
from federec.files import make_folder, write_atomic
from federec.methods.references import TRUSTED, absolute
from federec.network.certificates import ROOT, SERVER, SERVER_KEY, certificates, node_key
from federec.network.device_folder import DeviceFolder, shares
from federec.network.keys import Key
from federec.network.settings import EVENTS
from federec.runs.folder import RunFolder
from federec.runtimes.flower import warm
from federec.runtimes.flower.app import APP

HOST = "127.0.0.1"
_NAME = "federec"
_DEVICE = (
    "httpcore",
    "flwr.supernode.cli.flower_supernode",
    "flwr.supercore.cli.flower_superexec",
    "flwr.supernode.runtime.run_clientapp",
    "federec.runtimes.flower.client",
)
_SERVER = (
    "flwr.cli.app",
    "flwr.superlink.cli.flower_superlink",
    "flwr.superlink.runtime.run_serverapp",
    "federec.runtimes.flower.server",
)


_REVIVE = 5.0
"""Seconds between looks for nodes that have ended."""


def environment(home: Path) -> dict[str, str]:
    """Of all Flower processes: at home in a folder, silent towards the outside, with the packages that are here."""
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        # Not sooner: a process that starts before its SuperNode has all of the message sleeps for a second.
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Federation:
    """Processes of a federation on loopback; a context in which they live."""

    def __init__(self, home: Path, tls: bool = False, auth: bool = False) -> None:
        self.home, self.tls, self.auth = home.resolve(), tls, auth
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.nodes: dict[str, Callable[[], None]] = {}
        """What starts each node again."""
        self.scratch = Path(tempfile.mkdtemp(prefix="federec-"))  # the address of a socket must be short
        self.environment = environment(self.home / "flower")

    def __enter__(self) -> Self:
        make_folder(self.home / "logs")
        if self.tls and not (self.home / "tls").exists():
            certificates(self.home / "tls", ["localhost", HOST])
        make_folder(self.home / "flower")
        secure = f"root-certificates = '{self.home / 'tls' / ROOT}'" if self.tls else "insecure = true"
        entry = f"[superlink]\ndefault = '{_NAME}'\n\n[superlink.{_NAME}]\naddress = '{HOST}:{self.port}'\n{secure}\n"
        write_atomic(self.home / "flower" / "config.toml", entry)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Nodes first: one that ends tells the SuperLink, which refuses it for a minute if it comes back otherwise.
        self.stop(*self.nodes.keys() & self.processes.keys())
        self.stop(*self.processes)
        shutil.rmtree(self.scratch, ignore_errors=True)

    # Processes

    def start(self, name: str, *command: str, **environ: str) -> subprocess.Popen[bytes]:
        """Start a process in a group of its own; what it says goes to logs/NAME.log."""
        with (self.home / "logs" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment | environ,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self.processes[name] = process
        return process

    def stop(self, *names: str, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop processes with all that they have started; those that still run after five seconds are killed."""
        for name in names:
            _signal(self.processes[name], how)
        limit = time.monotonic() + 5
        for name in names:
            process = self.processes.pop(name)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, limit - time.monotonic()))
            _signal(process, signal.SIGKILL)
            process.wait()

    def fail_if_dead(self, *names: str) -> None:
        """A UserError where a process that should be there is not."""
        for name in names:
            if name in self.processes and (code := self.processes[name].poll()) is not None:
                log = self.home / "logs" / f"{name}.log"
                raise UserError(f"{name} ended with code {code}; see {log}")

    # What they are

    def warm_up(self) -> None:
        """Let Flower's commands start from a process that has loaded everything."""
        address = self.scratch / "warm"
        self.start("warm", sys.executable, "-m", "federec.runtimes.flower.warm", str(address), *_DEVICE, *_SERVER)
        warm.stand_ins(self.scratch / "bin", address)
        self.environment["PATH"] = f"{self.scratch / 'bin'}{os.pathsep}{self.environment['PATH']}"
        self.wait(address.exists, 120, "warm")

    def superlink(self, simulation: bool = False) -> None:
        """The server's end of the network; or of Flower's simulated network."""
        secure = ["--insecure"]
        if self.tls:
            tls = self.home / "tls"
            parts = {"--ssl-ca-certfile": ROOT, "--ssl-certfile": SERVER, "--ssl-keyfile": SERVER_KEY}
            secure = [word for option, file in parts.items() for word in (option, str(tls / file))]
        auth = ["--enable-supernode-auth"] if self.auth else ["--simulation"] if simulation else []
        base = ["--host", HOST, "--port", str(self.port), "--database", str(self.home / "flower" / "state.db")]
        self.start("superlink", self.command("flower-superlink"), *base, *secure, *auth)
        self.wait(self.answers, 60, "superlink")

    def answers(self) -> bool:
        """Whether something listens on the SuperLink's port."""
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0

    def register(self, name: str) -> None:
        """Make a key for a node and register it with the SuperLink."""
        key = self.home / "keys" / name
        if not key.exists():
            node_key(key)
            self.flwr("supernode", "register", f"{key}.pub", _NAME)

    def node(self, name: str, device: Path, key: Path, *extra: str, **environ: str) -> None:
        """A node's end of the network."""
        self.nodes[name] = partial(self.node, name, device, key, *extra, **environ)
        secure = ["--root-certificates", str(self.home / "tls" / ROOT)] if self.tls else ["--insecure"]
        auth = ["--auth-supernode-private-key", str(self.home / "keys" / name)] if self.auth else []
        self.start(
            name,
            self.command("flower-supernode"),
            *("--superlink", f"{HOST}:{self.port}", "--host", HOST, "--port", str(free_port())),
            *("--node-config", node_config(device, key)),
            *secure,
            *auth,
            *extra,
            **environ,
        )

    def revive(self) -> None:
        """Start nodes again that have ended by themselves: the SuperLink refuses a node whose last process was killed,
        until it has missed that process for a while."""
        for name in self.nodes.keys() & self.processes.keys():
            if self.processes[name].poll() is not None:
                self.stop(name)
                self.nodes[name]()

    def run(self, folder: Path, *extra: str) -> None:
        """Let the SuperLink start the run of a federation's folder."""
        self.flwr("run", str(folder / APP), _NAME, *extra)

    def flwr(self, *arguments: str) -> str:
        """Flower's own command line."""
        ended = subprocess.run(
            [self.command("flwr"), *arguments], env=self.environment, capture_output=True, text=True, timeout=120
        )
        if ended.returncode:
            last = (ended.stderr + ended.stdout).strip().splitlines()[-1:]
            raise UserError(f"flwr {' '.join(arguments[:2])} failed: {' '.join(last)}")
        return ended.stdout

    def command(self, name: str) -> str:
        return shutil.which(name, path=self.environment["PATH"]) or name

    def wait(self, ready: Callable[[], bool], seconds: float, *alive: str) -> None:
        """Wait until something is ready, as long as these processes live."""
        limit = time.monotonic() + seconds
        while not ready():
            self.fail_if_dead(*alive)
            if time.monotonic() > limit:
                raise UserError(f"{alive[0]} was not ready after {seconds:g} s; see {self.home / 'logs'}")
            time.sleep(0.05)


def join(
    superlink: str,
    device: Path,
    key: Path,
    root: Path | None,
    auth: Path | None,
    insecure: bool,
    trusted: Sequence[str] = (),
) -> int:
    """A SuperNode for a device folder, until it ends or is stopped; its exit code. All its processes are forks of this
    one, and so share the memory that loading everything takes. `trusted` are references of what the server may ask the
    device to run besides federec's own methods."""
    DeviceFolder.open(device, Key.file(key)).close()
    with tempfile.TemporaryDirectory(prefix="federec-") as scratch:
        address, folder = Path(scratch) / "warm", Path(scratch) / "bin"
        environ = environment(Path(scratch) / "flower") | trusting(trusted)
        warm.stand_ins(folder, address, ("flower-supernode", "flower-superexec", "flwr-clientapp"))
        secure = ["--root-certificates", str(root)] if root else ["--insecure"] if insecure else []
        proof = ["--auth-supernode-private-key", str(auth)] if auth else []
        where = "--superlink", superlink, "--host", HOST, "--port", str(free_port())
        command = [str(folder / "flower-supernode"), *where, "--node-config", node_config(device, key), *secure, *proof]
        nodes: list[subprocess.Popen[bytes]] = []

        def start() -> Callable[[], bool]:
            path = f"{folder}{os.pathsep}{environ['PATH']}"
            node = subprocess.Popen(command, env=environ | {"PATH": path}, preexec_fn=_die_with_parent)
            nodes.append(node)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: node.terminate())
            return lambda: node.poll() is None

        warm.serve(address, _DEVICE, start)
        return nodes[0].wait()


def trusting(references: Iterable[str]) -> dict[str, str]:
    """The environment of nodes that may run these methods and plug-ins besides federec's own."""
    known = [*filter(None, [os.environ.get(TRUSTED)]), *map(absolute, references)]
    return {TRUSTED: ",".join(known)} if known else {}


def node_config(device: Path, key: Path) -> str:
    """How a SuperNode is told which folder is its own."""
    return f"device={json.dumps(str(device.resolve()))} key={json.dumps(str(key.resolve()))}"


def bring_up(path: Path, tls: bool, auth: bool) -> Iterator[dict[str, Any]]:
    """Serve a prepared folder with the devices in it, to the end; the server's events on the way."""
    since = (path / EVENTS).stat().st_size if (path / EVENTS).exists() else 0
    with Federation(path, tls, auth) as federation:
        federation.warm_up()
        federation.superlink()
        config = RunFolder(path).config()
        trusted = trusting(name for name in (config.method, *config.plugins) if name in config.sources)
        for folder, key in shares(path.resolve()):
            if auth:
                federation.register(folder.name)
            federation.node(folder.name, folder, key, **trusted)
        federation.run(path)
        yield from follow(path, federation, ("warm", "superlink"), since)


def follow(folder: Path, federation: Federation, names: Sequence[str], since: int = 0) -> Iterator[dict[str, Any]]:
    """The server's events as they come, until the run is over. A UserError where a process has to be there and is not,
    or where the run failed."""
    path, position, revived = folder / EVENTS, since, time.monotonic()
    while True:
        if path.exists() and path.stat().st_size > position:
            with path.open("rb") as file:
                file.seek(position)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    position += len(line)
                    event = json.loads(line)
                    yield event
                    if event["event"] == "finished":
                        return
                    if event["event"] == "failed":
                        raise UserError(f"the run failed: {event['error']}")
        federation.fail_if_dead(*names)
        if time.monotonic() > revived + _REVIVE:
            federation.revive()
            revived = time.monotonic()
        time.sleep(0.1)


def _signal(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)


def _die_with_parent() -> None:
    """In a new process: end when the one that started it ends, however it does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
