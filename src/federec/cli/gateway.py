"""Browser tabs of a federation: `federec federation invite`, and the gateway of `federec federation serve`."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import typer
from typer import Argument, Option

from federec.errors import UserError

if TYPE_CHECKING:
    from federec.runtimes.flower.admission import Admission
    from federec.runtimes.flower.link import Link


def invite(
    out: Path = Argument(..., readable=False, help="Folder for the invitations; made if it is not there."),
    root: Path = Option(..., readable=False, help="Folder of ca.crt and ca.key."),
    page: str = Option(..., metavar="URL", help="Where the page is, such as https://films.example/."),
    count: int = Option(1, min=1, max=10_000, help="How many people to invite."),
    days: int = Option(90, min=1, help="How long a tab may take part."),
    run: Path | None = Option(None, readable=False, help="Admit them to the federation in this folder at once."),
) -> None:
    """Invite people to take part with a browser tab.

    Each invitation is a link, OUT/NAME.link, for one person only: it holds the key of a new device, so send it as you
    would send a password. OUT/NAME.crt goes into RUN/nodes on the server.
    """
    from federec.files import make_folder, write_atomic
    from federec.network.certificates import Authority, write_secret
    from federec.network.events import Events
    from federec.network.settings import FederationSettings
    from federec.runtimes.flower.admission import AUDIT, read_certificate
    from federec.runtimes.flower.records import NODES
    from federec.web.gateway.invitations import invitation, link

    if not _joinable(page):
        raise UserError(f"--page {page}: browsers only join over https; write it as https://HOST/")
    if run is not None:
        FederationSettings.read(run)
        make_folder(run / NODES)
    authority = Authority.read(root)
    make_folder(out)
    for _ in range(count):
        code, certificate = invitation(authority, days)
        name = f"tab-{secrets.token_hex(4)}"
        write_secret(out / f"{name}.link", (link(page, code) + "\n").encode())
        write_atomic(out / f"{name}.crt", certificate)
        if run is not None:
            write_atomic(run / NODES / f"{name}.crt", certificate)
            signed = read_certificate(out / f"{name}.crt", authority.pem)
            Events(run / AUDIT).say("certificate", name=name, device=str(signed.node), users=1, days=days)
    where = f"they are admitted to {run}" if run is not None else f"copy {out}/*.crt into RUN/{NODES} on the server"
    typer.echo(f"{count} invitations for {days} days: send each {out}/*.link to one person; {where}")


def _joinable(page: str) -> bool:
    """Whether a browser takes part from this address: over https, or on its own machine."""
    from federec.runtimes.flower.records import is_loopback

    try:
        address = urlsplit(page)
        host = address.hostname or ""
    except ValueError:  # such as http://[
        return False
    return bool(host) and (address.scheme == "https" or (address.scheme == "http" and is_loopback(host)))


def opener(
    run: Path,
    address: str | None,
    page: Path | None,
    certificates: Path | None,
    megabytes: int,
    say: Callable[[str], object],
) -> Callable[[Link, Admission], object]:
    """What opens a gateway beside a run's server, if one is asked for. Mistakes are said before anything starts."""
    if address is None:
        if page is not None or certificates is not None:
            raise UserError("--page and --gateway-certificates belong to a gateway; add --gateway HOST:PORT")
        return lambda link, admission: None
    if page is None:
        raise UserError("--gateway: name a trained run whose page the browsers get, with --page RUN")
    from federec.web.gateway.server import Address, files_of, open_gateway

    where, files = Address.of(address, certificates), files_of(run, page)

    def opened(link: Link, admission: Admission) -> None:
        url, _ = open_gateway(where, run, files, link, admission, megabytes)
        say(f"browsers join at {url}")

    return opened
