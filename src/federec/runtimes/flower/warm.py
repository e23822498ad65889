"""Flower's commands, quickly: forked from a process that has loaded everything.

Flower starts a new process for each message to a device, and loading torch takes longer than the device's work. This is
a process that has loaded it once. `stand_ins` makes a folder of commands with the names of Flower's; each asks this
process for a fork that becomes the real command, with its arguments, environment and files, waits for it, passes
signals on to it and takes it along when it is killed. With that folder first in its PATH, a SuperNode works as ever.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path

COMMANDS = ("flower-superlink", "flower-supernode", "flower-superexec", "flwr", "flwr-clientapp", "flwr-serverapp")

_STAND_IN = """#!{python} -IS
import json, os, signal, socket, sys
ask = json.dumps([sys.argv, dict(os.environ), os.getcwd()]).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [len(ask).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(ask)
    fork = int.from_bytes(server.recv(8), "big")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os.kill(fork, number))
    code = server.recv(1)
sys.exit(code[0] if code else 1)
"""


def stand_ins(folder: Path, address: Path, commands: tuple[str, ...] = COMMANDS) -> None:
    """A folder of commands that ask the process at `address`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in commands:
        path = folder / name
        path.write_text(_STAND_IN.format(python=sys.executable, address=str(address)))
        path.chmod(0o700)


def serve(address: Path, modules: Iterable[str], start: Callable[[], Callable[[], bool]]) -> None:
    """Load everything, be there at `address`, `start` what needs that, and answer stand-ins for as long as it says."""
    for module in modules:
        importlib.import_module(module)
    forks: set[int] = set()
    with socket.socket(socket.AF_UNIX) as server:
        part = address.with_suffix(".part")
        server.bind(str(part))
        part.chmod(0o600)
        server.listen(64)
        server.settimeout(0.5)
        part.replace(address)  # there only once it answers
        needed = start()
        while needed():
            forks = {fork for fork in forks if not os.waitpid(fork, os.WNOHANG)[0]}
            try:
                asker, _ = server.accept()
            except TimeoutError:
                continue
            if fork := os.fork():
                forks.add(fork)
                asker.close()
            else:
                server.close()
                os._exit(_run(asker))


def with_parent() -> Callable[[], bool]:
    """For as long as the process lives that started this one."""
    parent = os.getppid()
    return lambda: os.getppid() == parent


def _run(asker: socket.socket) -> int:
    """In a fork: become the command that was asked for."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    asker.setblocking(True)
    size, files, _, _ = socket.recv_fds(asker, 8, 3)
    ask = b""
    while len(ask) < int.from_bytes(size, "big"):
        ask += asker.recv(1 << 16)
    asker.sendall(os.getpid().to_bytes(8, "big"))
    argv, environ, folder = json.loads(ask)
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    sys.argv = argv
    threading.Thread(target=_follow, args=(asker,), daemon=True).start()
    name = Path(argv[0]).name
    code = 0
    try:
        next(iter(entry_points(group="console_scripts", name=name))).load()()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    asker.send(bytes([code & 0xFF]))
    return code


def _follow(asker: socket.socket) -> None:
    """End with the stand-in."""
    if not asker.recv(1):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2:], with_parent)
