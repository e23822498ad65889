"""A gateway beside a federation's server: its address, its files, and what it says of the federation."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from federec.errors import UserError
from federec.files import read_bytes
from federec.methods.base import DeviceMethod
from federec.network.catalogue import Catalogue
from federec.network.certificates import SERVER, SERVER_KEY
from federec.network.settings import CATALOGUE, FederationSettings
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder
from federec.runtimes.flower.admission import Admission
from federec.runtimes.flower.link import Link
from federec.runtimes.flower.records import MEGABYTES, is_loopback
from federec.runtimes.ports import answering, listening
from federec.stages.secure_sum import SecureSum
from federec.web.folder import page_files
from federec.web.gateway.app import BASE, Gateway

METHODS = ("pfedrec", "fedmf")
"""What tabs learn, see `static/federation/policy.js`."""


@dataclass(frozen=True)
class Address:
    """Where a gateway listens."""

    host: str
    port: int
    tls: tuple[Path, ...] = ()
    """Certificate and key; none on loopback, where a proxy may add TLS."""

    @staticmethod
    def of(text: str, certificates: Path | None) -> Address:
        """From HOST:PORT. Browsers only join over TLS: that of the folder, or on loopback that of a proxy before it."""
        host, _, port = text.rpartition(":")
        host = host.strip("[]")
        if not host or not port.isdigit() or int(port) > 65535:
            raise UserError(f"--gateway {text}: write it as HOST:PORT, such as 127.0.0.1:8080")
        if certificates is None and not is_loopback(host):
            raise UserError(
                f"--gateway {text}: browsers only join over TLS; add --gateway-certificates FOLDER with {SERVER} and "
                f"{SERVER_KEY}, or listen on 127.0.0.1 behind a proxy that has a certificate"
            )
        tls = () if certificates is None else (certificates / SERVER, certificates / SERVER_KEY)
        for file in tls:
            read_bytes(file)
        return Address(host, int(port), tls)

    def url(self, listener: socket.socket) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{listener.getsockname()[1]}/"


def described(run: Path, root: bytes) -> bytes:
    """What a gateway says of the federation in a folder to everybody, as JSON. Nothing in it is secret."""
    config, settings = RunFolder(run).config(), FederationSettings.read(run)
    told = {
        "run": settings.run,
        "config": config.model_dump(mode="json", exclude={"epsilon", "delta", "max_epsilon"}),
        "root": root.decode(),
    }
    return json.dumps(told).encode()


def check_tabs(config: RunConfig) -> None:
    """Refuse a federation in which no tab would take part."""
    method = config.build()
    form = method.fused_form(1) if isinstance(method, DeviceMethod) else None
    if config.method not in METHODS or config.plugins or form is None:
        called = "+".join((config.method, *config.plugins))
        raise UserError(f"a tab cannot learn '{called}' with these settings; it learns {' or '.join(METHODS)}")
    stages = [values["stage"] for values in config.channel or ()]
    if stages != [SecureSum.name]:
        asked = ", ".join(stages) or "in the clear"
        raise UserError(f"tabs only take part under '{SecureSum.name}', and this federation's channel is: {asked}")


def files_of(run: Path, page: Path) -> dict[str, bytes]:
    """The page of a trained run, for tabs of the federation in `run`, which must have its items."""
    check_tabs(RunFolder(run).config())
    files = page_files(page, gateway=BASE)
    if not Catalogue.read(run / CATALOGUE).extends(Catalogue.parse(files["catalogue.json"])):
        raise UserError(f"{page}: has other items than the federation in {run}; name a run on the same items")
    return files


def open_gateway(
    address: Address,
    run: Path,
    files: dict[str, bytes],
    link: Link,
    admission: Admission,
    megabytes: int = MEGABYTES,
) -> tuple[str, uvicorn.Server]:
    """Answer browsers from a thread that ends with the process: where, and the server."""
    app = Gateway(link, admission, described(run, admission.root), files, megabytes << 20)
    listener = listening(address.host, address.port)
    return address.url(listener), answering(app, listener, address.tls)
