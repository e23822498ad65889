"""A federation's server: one process; its port for nodes is that of Flower's Fleet API."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import uvicorn

from federec.errors import UserError
from federec.files import make_folder, read_bytes
from federec.network.certificates import ROOT, SERVER, SERVER_KEY
from federec.network.events import Events
from federec.network.messages import Kind
from federec.network.server import serve
from federec.network.settings import EVENTS, FederationSettings
from federec.network.transport import Delivery
from federec.runs.folder import RunFolder
from federec.runtimes.flower.admission import AUDIT, Admission
from federec.runtimes.flower.gate import fleet_app
from federec.runtimes.flower.link import Link
from federec.runtimes.flower.records import MEGABYTES, NODES, is_loopback
from federec.runtimes.ports import answering, listening


class FleetTransport:
    """Nodes that reach this process through Flower's Fleet API."""

    def __init__(self, link: Link, admission: Admission) -> None:
        self.link, self.admission = link, admission

    def nodes(self) -> Collection[int]:
        self.admission.look()
        return self.link.get_nodes(self.link.run)

    def users(self, node: int) -> int | None:
        """How many users a node was admitted with."""
        return self.admission.users(node)

    def send(self, messages: Mapping[int, bytes], kind: Kind, round_: int, timeout: float) -> dict[str, int]:
        return self.link.send(messages, kind, round_, timeout)

    def collect(self, tickets: Collection[str]) -> Iterable[Delivery]:
        return self.link.collect(tickets)


def run(
    path: Path,
    host: str,
    port: int,
    certificates: Path,
    insecure: bool = False,
    megabytes: int = MEGABYTES,
    say: Callable[[str], object] = lambda line: None,
    beside: Callable[[Link, Admission], object] = lambda link, admission: None,
) -> None:
    """Serve the federation of a folder from where it stands to its end. `certificates` has the root's certificate and,
    unless `insecure`, the server's own with its key. `say` is told once where the server listens. `beside` is called
    before the first round, to open another port to the same nodes."""
    settings = FederationSettings.read(path)
    if RunFolder(path).finished:
        raise UserError(f"{path}: holds a finished run already")
    if insecure and not is_loopback(host):
        raise UserError(f"{host}: --insecure is for loopback; leave it out, or use --host 127.0.0.1")
    if settings.metrics_port is not None and not is_loopback(settings.metrics_host):
        raise UserError(
            f"metrics_host={settings.metrics_host}: metrics are served on loopback, such as 127.0.0.1; to reach them "
            "from elsewhere put a proxy with TLS before them"
        )
    os.umask(0o077)  # what a server writes is nobody else's
    tls = () if insecure else (certificates / SERVER, certificates / SERVER_KEY)
    for file in (certificates / ROOT, *tls):
        read_bytes(file)
    make_folder(path / NODES)
    link = Link()
    others = (certificates / ROOT, *tls[:1])
    admission = Admission(link, path / NODES, read_bytes(certificates / ROOT), Events(path / AUDIT), others)
    admission.look()
    with listening(host, port) as listener:
        start(link, admission, listener, tls, megabytes << 20)
        beside(link, admission)
        devices = "1 device" if settings.expected == 1 else f"{settings.expected} devices"
        where = f"{host}:{listener.getsockname()[1]}"
        say(f"listening on {where}, waiting for {devices}; what happens is written to {path / EVENTS}")
        serve(FleetTransport(link, admission), path, admission.root)


def start(
    link: Link, admission: Admission, listener: socket.socket, tls: tuple[Path, ...], most: int
) -> uvicorn.Server:
    """Answer nodes from a thread that ends with the process, or with the server that is returned."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # who was refused is in the audit log
    return answering(fleet_app(link, admission, most), listener, tls)
