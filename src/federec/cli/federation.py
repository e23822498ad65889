"""`federec federation`: devices and a server that learn together over a network."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
import typer
from typer import Argument, Option

from federec.cli import options
from federec.cli.names import STAGES, one_of
from federec.cli.output import JSON
from federec.cli.train import free_folder, parse_settings, show_run
from federec.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from federec.runs.config import RunConfig
    from federec.runtimes.flower.admission import Admission
    from federec.runtimes.flower.link import Link

app = typer.Typer(
    help="Devices and a server that learn together over a network.",
    no_args_is_help=True,
)


@app.callback()
def private() -> None:
    os.umask(0o077)  # whatever these commands write, other users of the machine cannot read


METHOD = Option("pfedrec", autocompletion=options.METHOD_NAMES, help="Name of a method; see `federec methods`.")
COMMANDLINE = click.core.ParameterSource.COMMANDLINE
NETWORK = Option(
    None,
    metavar="KEY=VALUE",
    help="How nodes and server work together, such as deadline=60, minimum=3, metrics_port=9464; may be repeated.",
)


MESSAGE_MB = Option(64, min=1, max=2048, help="Largest message, in megabytes; a larger one is not read.")


STAGE = Option(
    None,
    "--stage",
    autocompletion=one_of(*STAGES, "none"),
    metavar="NAME[:KEY=VALUE,...]",
    help="What happens to updates before they leave a node, in order, such as clip:norm=1, gaussian:scale=0.1, "
    "secure-sum; may be repeated. [default: secure-sum, the server only sees sums over devices] `none` lets the server "
    "see every device's own update, and so what its user likes: devices of fewer than 100 users refuse that unless "
    "their owners allow it.",
)


@app.command()
def up(
    context: typer.Context,
    devices: int = Option(5, min=1, help="How many devices share the users."),
    data: str | None = options.DATA,
    method: str = METHOD,
    rounds: int | None = options.ROUNDS,
    seed: int = Option(0, help="Seed of all random numbers."),
    out: Path | None = options.OUT,
    protocol: str | None = options.PROTOCOL,
    with_: list[str] | None = options.WITH,
    set_: list[str] | None = options.SET,
    stage: list[str] | None = STAGE,
    aggregator: str | None = options.AGGREGATOR,
    epsilon: float | None = options.EPSILON,
    delta: float | None = options.DELTA,
    max_epsilon: float | None = options.MAX_EPSILON,
    network: list[str] | None = NETWORK,
    track: list[str] | None = options.TRACK,
    columns: str | None = options.COLUMNS,
    min_interactions: int | None = options.MIN_INTERACTIONS,
    k_core: int | None = options.K_CORE,
    min_rating: float | None = options.MIN_RATING,
    repeats: str | None = options.REPEATS,
    titles: Path | None = options.TITLES,
    split: str | None = Option(
        None,
        metavar="RULE",
        autocompletion=one_of("leave-one-out"),
        help="leave-one-out; needed if the data has a split column. Devices hold out their own two newest items.",
    ),
    resume: Path | None = Option(None, readable=False, help="Continue the unfinished federation in this folder."),
    quiet: bool = Option(False, "--quiet", "-q", help="Print no progress; for logs."),
    as_json: bool = JSON,
) -> None:
    """Run a whole federation on this machine.

    Server and devices are processes that talk over TLS on loopback. They are stopped when the run is over.
    """
    from federec.aggregators.registry import parse_aggregator
    from federec.data.describe import remarks
    from federec.network.catalogue import Catalogue
    from federec.network.device_folder import share_out
    from federec.network.settings import FederationSettings, prepare
    from federec.runs.folder import RunFolder
    from federec.runtimes.flower.up import bring_up
    from federec.tracking.registry import checked, remember

    if resume is not None:
        given_too = {name for name in context.params if context.get_parameter_source(name) is COMMANDLINE}
        if given_too - {"resume", "quiet", "as_json"}:
            raise UserError("--resume continues a federation as it was set up; leave out the other options")
        path = resume
        FederationSettings.read(path)
        if RunFolder(path).finished:
            raise UserError(f"{path}: holds a finished run already")
    else:
        reading = (columns, min_interactions, k_core, min_rating, repeats, titles)
        given = {"method": method, "rounds": rounds, "seed": seed, **options.data_values(data, *reading, None, None)}
        given |= {"protocol": protocol} if protocol else {}
        given |= {"split": split, "epsilon": epsilon, "delta": delta, "max_epsilon": max_epsilon}
        config = _config(given, with_, set_, stage, aggregator)
        settings = FederationSettings.checked(**{"expected": devices} | parse_settings(network or [], "--network"))
        path = out or free_folder(config)
        interactions = config.load()
        if devices > (users := interactions.n_users):
            raise UserError(f"--devices {devices}: '{config.data}' has {users:,} users, and a device hosts one or more")
        if devices < 2 and stage != ["none"]:
            raise UserError("--devices 1: a device hides among others; make two or more, or let it show: --stage none")
        if settings.minimum is not None and devices < settings.minimum:
            raise UserError(f"--devices {devices}: a round needs {settings.minimum}; add devices, or lower minimum")
        if devices < users and not parse_aggregator(aggregator or "mean")[0].linear:
            why = f"aggregator '{aggregator}' needs single users' updates, and a device of several sends their sum"
            raise UserError(f"--devices {devices}: {why}; make one for each user: --devices {users}")
        told = interactions.origin
        if interactions.parts is not None and split is None:
            told = told | {"split": "given"}
        tracked = checked(track or (), path)
        prepare(path, config.model_copy(update=told), settings, Catalogue.of(interactions))
        remember(tracked, path)
        for remark in remarks(interactions):
            typer.echo(remark, err=True)
        share_out(path, interactions, devices)
    try:
        with progress(quiet) as show:
            for event in bring_up(path):
                show(event)
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; continue with: federec federation up --resume {shlex.quote(str(path))}", err=True)
        raise typer.Exit(130) from None
    show_run(RunFolder(path).result(), path, as_json)


@app.command()
def prepare(
    out: Path = Argument(..., readable=False, help="Folder of the run, on the server."),
    catalogue: Path = Option(..., readable=False, help="The items, a JSON file; an item's code is its position in it."),
    method: str = METHOD,
    name: str = Option("devices", help="What the data is called in results."),
    rounds: int | None = options.ROUNDS,
    seed: int = Option(0, help="Seed of all random numbers."),
    with_: list[str] | None = options.WITH,
    set_: list[str] | None = options.SET,
    stage: list[str] | None = STAGE,
    aggregator: str | None = options.AGGREGATOR,
    epsilon: float | None = options.EPSILON,
    delta: float | None = options.DELTA,
    max_epsilon: float | None = options.MAX_EPSILON,
    network: list[str] | None = NETWORK,
    track: list[str] | None = options.TRACK,
) -> None:
    """Make the folder of a real federation's run.

    Start or continue it with `federec federation serve`.
    """
    from federec.network.catalogue import Catalogue
    from federec.network.settings import FederationSettings
    from federec.network.settings import prepare as make
    from federec.tracking.registry import checked, remember

    given: dict[str, Any] = {"method": method, "data": name, "rounds": rounds, "seed": seed}
    given |= {"epsilon": epsilon, "delta": delta, "max_epsilon": max_epsilon}
    config = _config(given, with_, set_, stage, aggregator)
    settings = FederationSettings.checked(**parse_settings(network or [], "--network"))
    tracked = checked(track or (), out)
    make(out, config, settings, Catalogue.read(catalogue))
    remember(tracked, out)
    typer.echo(f"start or continue it with: federec federation serve {shlex.quote(str(out))} --certificates FOLDER")


@app.command()
def serve(
    run: Path = Argument(..., readable=False, help="Folder of a federation's run, as `prepare` makes it."),
    certificates: Path = Option(..., readable=False, help="Folder with ca.crt, server.pem and server.key."),
    host: str = Option("0.0.0.0", help="Address to listen on."),
    port: int = Option(8000, min=0, max=65535, help="Port for nodes."),
    insecure: bool = Option(False, "--insecure", help="Without TLS; only where the host is loopback."),
    message_mb: int = MESSAGE_MB,
    gateway: str | None = Option(
        None,
        metavar="HOST:PORT",
        help="Also let browser tabs take part, at this address; see `federec federation invite`.",
    ),
    page: Path | None = Option(
        None, readable=False, help="With --gateway: a trained run on the same items, whose page the browsers get."
    ),
    gateway_certificates: Path | None = Option(
        None,
        readable=False,
        help="Folder with server.pem and server.key that browsers trust; not needed on loopback, behind a proxy.",
    ),
) -> None:
    """Run the server of a federation until its run is finished.

    The same command continues a run that was stopped. Only devices whose certificate is in RUN/nodes get in.
    """
    from federec.runtimes.flower.server import run as start

    say = partial(typer.echo, err=True)
    beside = _gateway(run, gateway, page, gateway_certificates, message_mb, say)
    try:
        start(run, host, port, certificates, insecure, message_mb, say, beside)
    except KeyboardInterrupt:
        typer.echo("\nstopped; the same command continues it", err=True)
        raise typer.Exit(130) from None


@app.command()
def join(
    server: str = Argument(..., help="Where the server is, as HOST:PORT."),
    folder: Path = Option(Path("device"), envvar="FEDEREC_DEVICE", readable=False, help="The device folder."),
    key: Path = Option(..., readable=False, help="Its key file."),
    root: Path | None = Option(None, readable=False, help="ca.crt of the federation. [default: the device's own]"),
    insecure: bool = Option(False, "--insecure", help="Without TLS; only where the server is on this machine."),
    method: list[str] | None = Option(
        None, help="A method or plug-in of your own that this device may run: path/to/mine.py:Mine; may be repeated."
    ),
    message_mb: int = MESSAGE_MB,
) -> None:
    """Take part in a federation with a device, until stopped.

    It runs only what is installed here, and says what it may send.
    """
    from federec.runtimes.flower.node import join as take_part

    try:
        take_part(server, folder, key, root, insecure, method or (), message_mb)
    except KeyboardInterrupt:
        typer.echo("\nstopped", err=True)
        raise typer.Exit(130) from None


@app.command("add-items")
def add_items(
    run: Path = Argument(..., readable=False, help="Folder of a federation's run."),
    items: list[str] = Argument(..., help="Labels of new items."),
) -> None:
    """Put new items at the end of the catalogue.

    Devices hear of them with the next round.
    """
    from federec.files import write_atomic
    from federec.network.catalogue import Catalogue
    from federec.network.settings import CATALOGUE, FederationSettings

    FederationSettings.read(run)
    old = Catalogue.read(run / CATALOGUE)
    new = old.grown(items)
    write_atomic(run / CATALOGUE, new.text())
    typer.echo(f"{len(new) - len(old)} new items, {len(new):,} in all")


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
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


def _gateway(
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


def _config(
    given: dict[str, Any],
    plugins: list[str] | None,
    settings: list[str] | None,
    stages: list[str] | None,
    aggregator: str | None,
) -> RunConfig:
    from federec.runs.config import RunConfig
    from federec.stages.registry import parse

    channel = None if not stages else () if stages == ["none"] else tuple(parse(stages))
    given |= {"channel": channel, "aggregator": aggregator}
    return RunConfig.checked(**given, plugins=tuple(plugins or ()), settings=parse_settings(settings or []))


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """How to show each event: not at all when quiet; as a table of devices on a terminal; else as a line a round."""
    if quiet:
        yield lambda event: None
    elif not sys.stderr.isatty():
        yield _log
    else:
        from rich.console import Console
        from rich.live import Live

        board = Board()
        with Live(console=Console(stderr=True), transient=True) as live:

            def show(event: dict[str, Any]) -> None:
                board.take(event)
                live.update(board.table())

            yield show


def _log(event: dict[str, Any]) -> None:
    text = {
        "waiting": "round {round}: {devices} devices there, waiting for {wanted}",
        "round": "round {round}/{rounds}  {loss}{valid}{seconds:.1f} s",
        "rejected": "round {round}: device {device} refused ({reason}: {detail})",
        "missing": "round {round}: device {device} did not answer in time",
        "again": "round {round}: {answered} devices answered, {minimum} are needed; the round is played again",
        "lost": "round {round}: came to nothing ({reason}); the next one goes on",
        "spoiled": "round {round}: a sum over {count} devices was spoiled ({reason})",
        "alarm": "round {round}: {reason}",
        "catalogue": "{items} items now",
    }.get(kind := event["event"])
    if text:
        loss = "" if event.get("loss") is None else f"loss {event['loss']:.4g}  "
        more = {
            "loss": loss,
            "valid": f"{_valid(event)}  ".lstrip(),
            "count": len(event["devices"]) if kind == "spoiled" else 0,
        }
        print(text.format(**event | more), file=sys.stderr, flush=True)


def _valid(event: dict[str, Any]) -> str:
    """The metric of a round, where devices told one."""
    return "" if event.get("hr@10") is None else f"valid hr@10 {event['hr@10']:.4f}"


class Board:
    """The newest of every device, and of the round."""

    def __init__(self) -> None:
        self.title = "starting"
        self.devices: dict[str, list[str]] = {}

    def take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "asked":
            self.title = f"round {event['round']}: {event['kind']}, {event['devices']} devices asked"
        elif kind == "round":
            parts = filter(None, (_valid(event), f"{event['seconds']:.1f} s"))
            self.title = f"round {event['round']} of {event['rounds']}: {', '.join(parts)}"
        elif kind == "waiting":
            self.title = "round {round}: {devices} devices there, waiting for {wanted}".format(**event)
        elif kind == "reply":
            self.devices[event["device"]] = [str(event["users"]), str(event["round"]), f"{event['kind']}: answered"]
        elif kind in ("rejected", "missing"):
            users = self.devices.get(event["device"], ["?"])[0]
            state = f"refused: {event['reason']}" if kind == "rejected" else "did not answer in time"
            self.devices[event["device"]] = [users, str(event["round"]), state]

    def table(self) -> Table:
        from rich.table import Table

        table = Table("device", "users", "round", "state", title=self.title, title_justify="left", box=None)
        for device, cells in sorted(self.devices.items()):
            table.add_row(device[-6:], *cells)
        return table
