"""`federec federation certificates`, `admit` and `remove`: which devices take part."""

from __future__ import annotations

from pathlib import Path

import typer
from typer import Argument, Option

from federec.errors import UserError


def certificates(
    out: Path = Argument(..., readable=False, help="Folder for the server's certificate; made if it is not there."),
    host: list[str] = Option(..., help="A name or address of the server; may be repeated."),
    days: int = Option(365, min=1, help="How long the server's certificate holds."),
    root: Path | None = Option(None, readable=False, help="Folder of ca.crt and ca.key. [default: OUT]"),
) -> None:
    """Make a root and a certificate of the server.

    With a root that is there, it makes a new certificate of the server.
    """
    from federec.files import make_folder, write_atomic
    from federec.network.certificates import ROOT, ROOT_KEY, SERVER, SERVER_KEY, Authority

    home = root or out
    authority = Authority.read(home) if (home / ROOT).exists() else Authority.create(home)
    make_folder(out)
    authority.serve(out, host, days)
    if home != out:
        write_atomic(out / ROOT, authority.pem)
    typer.echo(f"for the server: {out / SERVER}, {out / SERVER_KEY}; for the server and all devices: {out / ROOT}")
    typer.echo(f"keep {home / ROOT_KEY} offline: whoever has it can admit devices and pose as the server")


def admit(
    request: Path = Argument(..., readable=False, help="What `federec device request` printed on the device."),
    root: Path = Option(..., readable=False, help="Folder of ca.crt and ca.key."),
    out: Path = Option(..., readable=False, help="File for the certificate, NAME.crt; the device is called NAME."),
    users: int = Option(1, min=1, max=2**32 - 1, help="How many users the device may speak for."),
    days: int = Option(365, min=1, help="How long the certificate holds."),
    run: Path | None = Option(None, readable=False, help="Admit it to the federation in this folder at once."),
) -> None:
    """Admit a device: sign its request. The certificate goes to the device, and into RUN/nodes on the server."""
    from federec.files import make_folder, read_bytes, write_atomic
    from federec.network.certificates import Authority
    from federec.network.events import Events
    from federec.network.settings import FederationSettings
    from federec.runtimes.flower.admission import AUDIT, read_certificate
    from federec.runtimes.flower.records import NODES

    if out.suffix != ".crt":
        raise UserError(f"{out}: name it NAME.crt, such as phone.crt")
    if out.exists():
        raise UserError(f"{out}: exists; name another file")
    if run is not None:
        FederationSettings.read(run)
    authority = Authority.read(root)
    try:
        certificate = authority.admit(read_bytes(request), users, days)
    except UserError as error:
        raise UserError(f"{request}: {error}") from None
    write_atomic(out, certificate)
    if run is not None:
        make_folder(run / NODES)
        write_atomic(run / NODES / out.name, certificate)
        signed = read_certificate(out, authority.pem)
        Events(run / AUDIT).say("certificate", name=out.stem, device=str(signed.node), users=users, days=days)
    typer.echo(f"device '{out.stem}' with {users} users is admitted for {days} days: {out}")


def remove(
    run: Path = Argument(..., readable=False, help="Folder of a federation's run."),
    node: str = Argument(..., help="The device: the name of its certificate, or its number in events.jsonl."),
) -> None:
    """Remove a device from a federation.

    The server refuses it from the next request on.
    """
    from federec.errors import did_you_mean
    from federec.network.events import Events
    from federec.network.settings import FederationSettings
    from federec.runtimes.flower.admission import AUDIT, node_of
    from federec.runtimes.flower.records import NODES

    FederationSettings.read(run)
    files = {path.stem: path for path in (run / NODES).glob("*.crt")}
    found = [path for name, path in files.items() if node in (name, node_of(path))]
    if not found:
        raise UserError(f"{run}: has no device '{node}'{did_you_mean(node, files) if files else ''}")
    found[0].unlink()
    Events(run / AUDIT).say("withdrawn", name=found[0].stem)
    typer.echo(f"device '{found[0].stem}' is removed")
