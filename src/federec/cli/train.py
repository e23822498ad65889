"""`federec train`: run a method, keep everything in a folder, show how it goes."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from federec.errors import UserError

if TYPE_CHECKING:
    from federec.runs.config import RunConfig
    from federec.runs.folder import RunFolder
    from federec.runs.group import Group
    from federec.runs.loop import OnRound
    from federec.runtimes.run import Run

_LONG_RANKING = 1e10
"""Users times items from which ranking all items for everybody takes many minutes."""


STAGE = Option(
    None,
    "--stage",
    metavar="NAME[:KEY=VALUE,...]",
    help="What happens to updates before they leave a device, in order: clip:norm=1, laplace:scale=0.5, "
    "gaussian:scale=0.1, decoys:count=500, dense, top-rows:count=100, quantise:bits=8, secure-sum; may be repeated.",
)
AGGREGATOR = Option(
    None, help="How the server makes one of many updates: mean, sum or touched-mean. [default: the method's own]"
)


def train(
    method: str | None = Argument(
        None,
        help="Name of a method; see `federec methods`. Or a class of your own: path/to/mine.py:Mine or "
        "package.module:Mine. [default: pfedrec]",
    ),
    data: str | None = Option(None, help="A named set, a file, or a generated folder. [default: tastes]"),
    protocol: str | None = Option(None, help="How negatives are drawn: clean or paper. [default: clean]"),
    rounds: int | None = Option(None, help="Rounds of training. [default: the method's own]"),
    seed: int | None = Option(None, help="Seed of all random numbers. [default: 0]"),
    out: Path | None = Option(None, readable=False, help="Folder of the run. [default: a new one under runs/]"),
    with_: list[str] | None = Option(
        None, "--with", help="Put a plug-in on the method: a name or path/to/mine.py:Mine; may be repeated."
    ),
    preset: str | None = Option(None, help="Settings found for a data set; see `federec methods NAME`."),
    set_: list[str] | None = Option(
        None, "--set", metavar="KEY=VALUE", help="A setting of the method; may be repeated."
    ),
    participation: float | None = Option(None, help="Fraction of the devices in a round. [default: the method's own]"),
    evaluate_users: int | None = Option(None, help="Evaluate this many users, drawn at random. [default: all]"),
    device: str | None = Option(None, help="cpu or cuda. [default: cpu]"),
    stage: list[str] | None = STAGE,
    aggregator: str | None = AGGREGATOR,
    engine: str | None = Option(None, help="torch, or fused kernels where the method has them. [default: auto]"),
    columns: str | None = Option(None, help="Columns of the file, such as user=uid,item=mid,timestamp=3."),
    min_interactions: int | None = Option(None, help="Leave out users with fewer rows."),
    k_core: int | None = Option(None, help="Leave out users and items with fewer than k partners."),
    config: Path | None = Option(
        None, readable=False, help="Repeat the run of a config.yaml; other options change it."
    ),
    resume: Path | None = Option(None, readable=False, help="Continue the unfinished run in this folder."),
    quiet: bool = Option(False, "--quiet", "-q", help="No progress bar; for logs."),
) -> None:
    """Train a recommender and evaluate it honestly."""
    from federec.data.columns import parse_columns
    from federec.stages.registry import parse

    given: dict[str, Any] = {
        "method": method,
        "data": data,
        "protocol": protocol,
        "rounds": rounds,
        "seed": seed,
        "plugins": with_,
        "settings": parse_settings(set_) if set_ else None,
        "participation": participation,
        "evaluate_users": evaluate_users,
        "device": device,
        "engine": engine,
        "channel": tuple(parse(stage)) if stage else None,
        "aggregator": aggregator,
        "columns": parse_columns(columns) if columns else None,
        "min_interactions": min_interactions,
        "k_core": k_core,
    }
    given = {key: value for key, value in given.items() if value is not None}
    if resume is not None and (given or preset or config is not None or out is not None):
        raise UserError("--resume continues a run as it was configured; leave out the other options")
    from federec.runtimes.distributed import joined

    with joined() as group:
        if resume is not None:
            _resume(resume, quiet, group)
        else:
            with group.together():
                resolved = _resolve(config, preset, given)
            _start(resolved, out, quiet, group)


def parse_settings(pairs: list[str], option: str = "--set") -> dict[str, Any]:
    """`key=value` texts; a value may be a number, a word or a list such as [64,32]."""
    import yaml

    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UserError(f"{option} {pair}: write it as key=value")
        try:
            settings[key.strip()] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError):
            raise UserError(f"{option} {pair}: the value is not a number, a word or a list like [64,32]") from None
    return settings


def _resolve(config: Path | None, preset: str | None, given: dict[str, Any]) -> RunConfig:
    """The configuration file, if any, with the preset and the given options over it."""
    from federec.methods import presets
    from federec.methods.references import absolute
    from federec.runs.config import RunConfig

    base = (RunConfig() if config is None else RunConfig.read(config)).model_dump(mode="json")
    del base["sources"]  # of the run to repeat; this one is of the files as they are now
    if absolute(given.get("method", base["method"])) != base["method"]:
        base |= {"plugins": (), "settings": {}, "rounds": None, "participation": None, "aggregator": None}
    if given.get("data", base["data"]) != base["data"]:
        base |= {"columns": {}, "min_interactions": None, "k_core": None}
    run = base | given
    found = presets.preset(run["method"], preset, run["plugins"]) if preset else {}
    return RunConfig.checked(**run | {"settings": base["settings"] | found | given.get("settings", {})})


def _start(config: RunConfig, out: Path | None, quiet: bool, group: Group) -> None:
    from federec.runs.folder import RunFolder
    from federec.runtimes.local import run

    folder = RunFolder(group.agree(out or free_folder(config)))

    def job(on_round: OnRound) -> Run:
        with group.together():
            if group.first:
                folder.refuse_other()
            data = config.load()
        if data.merged and group.first and not quiet:
            typer.echo(f"{data.name}: merged {data.merged:,} repeated (user, item) rows", err=True)
        if config.evaluate_users is None and data.n_users * data.n_items > _LONG_RANKING and group.first and not quiet:
            ranking = f"ranking {data.n_items:,} items for {data.n_users:,} users at the end takes long"
            typer.echo(f"{data.name}: {ranking}; --evaluate-users 10000 does it for some", err=True)
        # Its origin has the whole path.
        return run(config.model_copy(update=data.origin), data, folder, on_round, group)

    _watch(job, folder, quiet, group)


def _resume(path: Path, quiet: bool, group: Group) -> None:
    from federec.runs.folder import RunFolder
    from federec.runtimes.local import resume

    _watch(lambda on_round: resume(path, on_round=on_round, group=group), RunFolder(path), quiet, group)


def _watch(job: Callable[[OnRound], Run], folder: RunFolder, quiet: bool, group: Group) -> None:
    """Run with a progress bar, end with the table; Ctrl-C or the loss of another process says how to go on."""
    from federec.cli.progress import progress
    from federec.reporting.tables import run_table
    from federec.runtimes.distributed import Lost

    then = f"continue with: federec train --resume {shlex.quote(str(folder.path))}"
    try:
        with progress(quiet or not group.first) as on_round:
            run = job(on_round)
    except Lost as error:
        raise Lost(f"{error}; {then}, under torchrun or not") from None
    except KeyboardInterrupt:
        if group.first:
            typer.echo(f"\nstopped; {then if folder.started else 'nothing was written'}", err=True)
        raise typer.Exit(130) from None
    if not group.first:
        return
    run_table(run.result)
    typer.echo(f"run    {folder.path}\nreport {folder.path / 'report.html'}")


def name_of(config: RunConfig) -> str:
    """METHOD-DATA-PROTOCOL-SEED."""
    method, data = config.build(), Path(config.data).name.split(".")[0]
    name = re.sub(r"[^\w.+-]+", "-", "+".join([method.name, *method.plugins]))
    return "-".join([name, data, config.protocol, f"s{config.seed}"])


def free_folder(config: RunConfig) -> Path:
    """A folder of that name under runs/, with a number behind it where that is taken."""
    name = name_of(config)
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for path in map(Path("runs").joinpath, names) if not path.exists())
