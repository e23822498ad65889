"""A whole federation on this machine: a server and nodes in processes of their own, started and stopped together."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import flwr  # noqa: F401  where it is missing, that is said before anything is written
import torch

from federec.errors import UserError
from federec.files import make_folder, write_atomic
from federec.network.certificates import ROOT, ROOT_KEY, Authority
from federec.network.device_folder import DeviceFolder, shares
from federec.network.keys import Key
from federec.network.settings import EVENTS
from federec.runs.folder import RunFolder
from federec.runtimes.flower.records import NODES

HOST = "127.0.0.1"
TLS, LOGS = "tls", "logs"
_PATIENCE = 5.0  # seconds for a process to end by itself
_MEMORY = multiprocessing.get_context("forkserver")
_MEMORY.set_forkserver_preload(["federec.runtimes.flower.node", __name__])  # nodes share the memory of what they load


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Federation:
    """Processes of a federation on loopback; a context in which they live. Its certificates, and those of its nodes,
    are in the folder of the run."""

    def __init__(self, home: Path) -> None:
        self.home, self.port = home.resolve(), free_port()
        self.server: subprocess.Popen[bytes] | None = None
        self.nodes: dict[str, BaseProcess] = {}

    def __enter__(self) -> Self:
        for name in (LOGS, NODES):
            make_folder(self.home / name)
        tls = self.home / TLS
        self.authority = Authority.read(tls) if (tls / ROOT_KEY).exists() else Authority.create(tls)
        self.authority.serve(tls, ["localhost", HOST])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.nodes.values():
            process.terminate()
        if self.server is not None:
            self.server.terminate()
        limit = time.monotonic() + _PATIENCE
        for process in self.nodes.values():
            process.join(max(0.0, limit - time.monotonic()))
            process.kill()
            process.join()
        if self.server is not None:
            self.stop_server(signal.SIGKILL)

    def serve(self, *options: str) -> None:
        """Start the server."""
        where = "--host", HOST, "--port", str(self.port), "--certificates", str(self.home / TLS)
        command = [sys.executable, "-m", "federec", "federation", "serve", str(self.home), *where, *options]
        with (self.home / LOGS / "server.log").open("ab") as log:
            self.server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def stop_server(self, how: signal.Signals = signal.SIGTERM) -> None:
        assert self.server is not None
        self.server.send_signal(how)
        self.server.wait()

    def admit(self, name: str, device: Path, key: Path) -> None:
        """Admit a device folder, unless it was admitted before."""
        path = self.home / NODES / f"{name}.crt"
        if path.exists():
            return
        with closing(DeviceFolder.open(device, Key.file(key))) as folder:
            certificate = self.authority.admit(folder.identity.request(), len(folder.users))
            folder.admit(certificate, self.authority.pem)
        write_atomic(path, certificate)

    def node(self, name: str, device: Path, key: Path, trusted: Sequence[str] = ()) -> None:
        """Start a node for a device folder that was admitted."""
        given = f"{HOST}:{self.port}", device, key, self.home / TLS / ROOT, False, tuple(trusted)
        self.nodes[name] = _MEMORY.Process(target=_node, args=(self.home / LOGS / f"{name}.log", given), daemon=True)
        self.nodes[name].start()

    def check(self) -> None:
        """A UserError where a process has ended that should be there."""
        for name, process in self.nodes.items():
            if process.exitcode not in (None, -signal.SIGKILL):
                raise UserError(f"{name} ended with code {process.exitcode}; see {self.home / LOGS / name}.log")
        if self.server is not None and (code := self.server.poll()) is not None:
            raise UserError(f"the server ended with code {code}; see {self.home / LOGS / 'server.log'}")


def bring_up(path: Path) -> Iterator[dict[str, Any]]:
    """Serve a prepared folder with the devices in it, to the end; the server's events on the way."""
    os.umask(0o077)
    since = (path / EVENTS).stat().st_size if (path / EVENTS).exists() else 0
    config = RunFolder(path).config()
    trusted = [name for name in (config.method, *config.plugins) if name in config.sources]
    with Federation(path) as federation:
        federation.serve()
        for folder, key in shares(path.resolve()):
            federation.admit(folder.name, folder, key)
            federation.node(folder.name, folder, key, trusted)
        yield from follow(path, federation, since)


def follow(folder: Path, federation: Federation, since: int = 0) -> Iterator[dict[str, Any]]:
    """The server's events as they come, until the run is over. A UserError where a process has to be there and is not,
    or where the run failed."""
    path, position = folder / EVENTS, since
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
        else:  # all that it said was read
            federation.check()
        time.sleep(0.1)


def _node(log: Path, given: tuple[Any, ...]) -> None:
    """In a new process: a node whose words go to a file."""
    from federec.runtimes.flower.node import join

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # nodes share the cores: in each of them a thread for every core would wait for work
    threading.Thread(target=_follow_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the one that started it will say when to stop
    os.umask(0o077)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        join(*given)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2) from None


def _follow_parent() -> None:
    """In a node: end when the process that has started it is killed. It is a fork of another one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _die_with_parent() -> None:
    """In a new process: end when the one that started it ends, however it does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
