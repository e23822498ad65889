"""`federec federation`: devices and a server that learn together over a network.

Who takes part is in `admission.py`, browser tabs in `gateway.py`, and what a run shows meanwhile in `board.py`.
"""

from __future__ import annotations

import os
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import typer
from typer import Argument, Option

from federec.cli import options
from federec.cli.admission import admit, certificates, remove
from federec.cli.board import progress
from federec.cli.gateway import invite, opener
from federec.cli.names import STAGES, one_of
from federec.cli.output import JSON
from federec.cli.train import free_folder, parse_settings, show_run
from federec.errors import UserError

if TYPE_CHECKING:
    from federec.runs.config import RunConfig

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
    beside = opener(run, gateway, page, gateway_certificates, message_mb, say)
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


for command in (certificates, admit, invite, remove):
    app.command()(command)


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
