"""`federec federation`: devices and a server that learn together over a network."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import typer
from typer import Argument, Option

from federec.cli.train import AGGREGATOR, free_folder, parse_settings
from federec.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from federec.runs.config import RunConfig

app = typer.Typer(
    help="A federation: devices and a server that learn together over a network, on Flower.",
    no_args_is_help=True,
)


COMMANDLINE = click.core.ParameterSource.COMMANDLINE
NETWORK = Option(
    None,
    metavar="KEY=VALUE",
    help="How nodes and server work together, such as deadline=60, minimum=3, metrics_port=9464; may be repeated.",
)


STAGE = Option(
    None,
    "--stage",
    metavar="NAME[:KEY=VALUE,...]",
    help="What happens to updates before they leave a node, in order, such as clip:norm=1, gaussian:scale=0.1, decoys, "
    "dense, quantise:bits=8, secure-sum; may be repeated. Without any, a node names the item rows that it needs: where "
    "it hosts only one user, that tells the server which items the user has. decoys and dense do not hide it, "
    "since unchanged rows leave as zeros; secure-sum only hides it from a server that does not try hard.",
)


@app.command()
def up(
    context: typer.Context,
    devices: int = Option(5, min=1, help="How many devices share the users."),
    data: str = Option("tastes", help="A named set or a file of interactions."),
    method: str = Option("pfedrec", help="Name of a method; see `federec methods`."),
    rounds: int | None = Option(None, help="Rounds of training. [default: the method's own]"),
    seed: int = Option(0, help="Seed of all random numbers."),
    out: Path | None = Option(None, readable=False, help="Folder of the run. [default: a new one under runs/]"),
    protocol: str = Option("clean", help="How negatives are drawn: clean or paper."),
    with_: list[str] | None = Option(None, "--with", help="Put a plug-in on the method; may be repeated."),
    set_: list[str] | None = Option(
        None, "--set", metavar="KEY=VALUE", help="A setting of the method; may be repeated."
    ),
    stage: list[str] | None = STAGE,
    aggregator: str | None = AGGREGATOR,
    network: list[str] | None = NETWORK,
    tls: bool = Option(False, "--tls", help="Encrypt, with certificates made for it."),
    auth: bool = Option(False, "--auth", help="Only admit devices with registered keys; needs --tls."),
    resume: Path | None = Option(None, readable=False, help="Continue the unfinished federation in this folder."),
    quiet: bool = Option(False, "--quiet", "-q", help="Print no progress; for logs."),
) -> None:
    """A whole federation on this machine: a SuperLink and SuperNodes on loopback, stopped when it is over."""
    from federec.network.catalogue import Catalogue
    from federec.network.device_folder import share_out
    from federec.network.settings import FederationSettings
    from federec.reporting.tables import run_table
    from federec.runs.folder import RunFolder
    from federec.runtimes.flower.app import prepare
    from federec.runtimes.flower.up import bring_up

    if auth and not tls:
        raise UserError("devices can only prove who they are over TLS; add --tls")
    if resume is not None:
        given_too = {name for name in context.params if context.get_parameter_source(name) is COMMANDLINE}
        if given_too - {"resume", "quiet"}:
            raise UserError("--resume continues a federation as it was set up; leave out the other options")
        path = resume
        FederationSettings.read(path)
        if RunFolder(path).finished:
            raise UserError(f"{path}: holds a finished run already")
        tls, auth = (path / "tls").exists(), (path / "keys").exists()
    else:
        given = {"method": method, "data": data, "protocol": protocol, "rounds": rounds, "seed": seed}
        config = _config(given, with_, set_, stage, aggregator)
        settings = FederationSettings.checked(**{"expected": devices} | parse_settings(network or [], "--network"))
        path = out or free_folder(config)
        interactions = config.load()
        if devices > (users := interactions.n_users):
            raise UserError(f"--devices {devices}: '{data}' has {users:,} users, and a device hosts one or more")
        if devices < settings.minimum:
            raise UserError(f"--devices {devices}: a round needs {settings.minimum}; add devices, or lower minimum")
        prepare(path, config.model_copy(update=interactions.origin), settings, Catalogue.of(interactions))
        share_out(path, interactions, devices)
    try:
        with progress(quiet) as show:
            for event in bring_up(path, tls, auth):
                show(event)
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; continue with: federec federation up --resume {shlex.quote(str(path))}", err=True)
        raise typer.Exit(130) from None
    run_table(RunFolder(path).result())
    typer.echo(f"run    {path}\nreport {path / 'report.html'}")


@app.command()
def prepare(
    out: Path = Argument(..., readable=False, help="Folder of the run, on the server."),
    catalogue: Path = Option(..., readable=False, help="The items, a JSON file; an item's code is its position in it."),
    method: str = Option("pfedrec", help="Name of a method; see `federec methods`."),
    name: str = Option("devices", help="What the data is called in results."),
    rounds: int | None = Option(None, help="Rounds of training. [default: the method's own]"),
    seed: int = Option(0, help="Seed of all random numbers."),
    with_: list[str] | None = Option(None, "--with", help="Put a plug-in on the method; may be repeated."),
    set_: list[str] | None = Option(
        None, "--set", metavar="KEY=VALUE", help="A setting of the method; may be repeated."
    ),
    stage: list[str] | None = STAGE,
    aggregator: str | None = AGGREGATOR,
    network: list[str] | None = NETWORK,
) -> None:
    """Make the folder of a real federation's run; start or continue it with `flwr run OUT/app`."""
    from federec.network.catalogue import Catalogue
    from federec.network.settings import FederationSettings
    from federec.runtimes.flower.app import prepare as make

    config = _config({"method": method, "data": name, "rounds": rounds, "seed": seed}, with_, set_, stage, aggregator)
    settings = FederationSettings.checked(**parse_settings(network or [], "--network"))
    make(out, config, settings, Catalogue.read(catalogue))
    typer.echo(f"start or continue it with: flwr run {shlex.quote(str(out / 'app'))} SUPERLINK")


@app.command()
def join(
    superlink: str = Argument(..., help="Where the server is, as HOST:PORT."),
    folder: Path = Option(Path("device"), envvar="FEDEREC_DEVICE", readable=False, help="The device folder."),
    key: Path = Option(..., readable=False, help="Its key file."),
    root: Path | None = Option(None, readable=False, help="The server's root certificate. [default: the system's]"),
    auth: Path | None = Option(None, readable=False, help="The device's registered private key."),
    insecure: bool = Option(False, "--insecure", help="Without TLS: everyone on the way can read all messages."),
    method: list[str] | None = Option(
        None, help="A method or plug-in of your own that this device may run: path/to/mine.py:Mine; may be repeated."
    ),
) -> None:
    """Take part with a device, until stopped."""
    from federec.runtimes.flower.up import join as take_part

    raise typer.Exit(take_part(superlink, folder, key, root, auth, insecure, method or ()))


@app.command("add-items")
def add_items(
    run: Path = Argument(..., readable=False, help="Folder of a federation's run."),
    items: list[str] = Argument(..., help="Labels of new items."),
) -> None:
    """Put new items at the end of the catalogue; devices hear of them with the next round."""
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
    out: Path = Argument(..., readable=False, help="A new folder for them."),
    host: list[str] = Option(..., help="A name or address of the server; may be repeated."),
    days: int = Option(365, min=1, help="How long they hold."),
) -> None:
    """Make a root certificate and one for the server."""
    from federec.network.certificates import certificates as make

    make(out, host, days)
    typer.echo(f"for devices: {out / 'ca.crt'}; only for the server: {out / 'server.pem'}, {out / 'server.key'}")


@app.command("node-key")
def node_key(out: Path = Argument(..., readable=False, help="A new file; the public key gets .pub behind it.")) -> None:
    """Make a key with which a device proves who it is."""
    from federec.network.certificates import node_key as make

    make(out)
    typer.echo(f"stays on the device: {out}; register on the server: flwr supernode register {out}.pub SUPERLINK")


def _config(
    given: dict[str, Any],
    plugins: list[str] | None,
    settings: list[str] | None,
    stages: list[str] | None,
    aggregator: str | None,
) -> RunConfig:
    from federec.runs.config import RunConfig
    from federec.stages.registry import parse

    given |= {"channel": tuple(parse(stages or ())), "aggregator": aggregator}
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
        "round": "round {round}/{rounds}  {loss}valid hr@10 {hr@10:.4f}  {seconds:.1f} s",
        "rejected": "round {round}: device {device} refused ({reason}: {detail})",
        "missing": "round {round}: device {device} did not answer in time",
        "again": "round {round}: {answered} devices answered, {minimum} are needed; the round is played again",
        "catalogue": "{items} items now",
    }.get(event["event"])
    if text:
        loss = "" if event.get("loss") is None else f"loss {event['loss']:.4g}  "
        print(text.format(**event | {"loss": loss}), file=sys.stderr, flush=True)


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
            self.title = "round {round} of {rounds}: valid hr@10 {hr@10:.4f}, {seconds:.1f} s".format(**event)
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
