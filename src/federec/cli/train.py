"""`federec train`: run a method, keep everything in a folder, show how it goes."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from federec.cli import options
from federec.cli.names import PRESETS, one_of
from federec.cli.output import JSON, show
from federec.errors import UserError

if TYPE_CHECKING:
    from federec.data.interactions import Interactions
    from federec.runs.config import RunConfig
    from federec.runs.folder import Line, RunFolder
    from federec.runs.group import Group
    from federec.runs.loop import OnRound
    from federec.runtimes.run import Run


def train(
    method: str | None = Argument(
        None,
        autocompletion=options.METHOD_NAMES,
        help="Name of a method; see `federec methods`. Or a class of your own: path/to/mine.py:Mine or "
        "package.module:Mine. [default: what ranks best on data of this kind]",
    ),
    data: str | None = options.DATA,
    protocol: str | None = options.PROTOCOL,
    rounds: int | None = options.ROUNDS,
    seed: int | None = Option(None, help="Seed of all random numbers. [default: 0]"),
    out: Path | None = options.OUT,
    with_: list[str] | None = options.WITH,
    preset: str | None = Option(
        None,
        autocompletion=one_of(*PRESETS),
        help="Take settings found on validation: clean for those of this data set; `federec methods NAME` lists all.",
    ),
    set_: list[str] | None = options.SET,
    select: str | None = options.SELECT,
    patience: int | None = options.PATIENCE,
    participation: float | None = options.PARTICIPATION,
    epsilon: float | None = options.EPSILON,
    delta: float | None = options.DELTA,
    max_epsilon: float | None = options.MAX_EPSILON,
    fresh_steps: int | None = Option(
        None,
        min=0,
        help="After training, let devices learn this many rounds more from all items before the test item, and rank it "
        "again. [default: 0]",
    ),
    evaluate_users: int | None = options.EVALUATE_USERS,
    device: str | None = options.DEVICE,
    stage: list[str] | None = options.STAGE,
    aggregator: str | None = options.AGGREGATOR,
    attack: str | None = options.ATTACK,
    engine: str | None = Option(
        None,
        autocompletion=one_of("auto", "torch", "fused"),
        help="torch, or fused: kernels, where the method has them. [default: auto, what is faster for the run]",
    ),
    columns: str | None = options.COLUMNS,
    min_interactions: int | None = options.MIN_INTERACTIONS,
    k_core: int | None = options.K_CORE,
    min_rating: float | None = options.MIN_RATING,
    repeats: str | None = options.REPEATS,
    titles: Path | None = options.TITLES,
    valid_file: Path | None = options.VALID_FILE,
    test_file: Path | None = options.TEST_FILE,
    split: str | None = options.SPLIT,
    ties: str | None = options.TIES,
    config: Path | None = Option(
        None, readable=False, help="Repeat the run of a config.yaml; other options change it."
    ),
    track: list[str] | None = options.TRACK,
    resume: Path | None = Option(None, readable=False, help="Continue the unfinished run in this folder."),
    quiet: bool = Option(False, "--quiet", "-q", help="No progress bar; for logs."),
    as_json: bool = JSON,
) -> None:
    """Train a recommender and evaluate it honestly."""
    from federec.stages.registry import parse

    reading = (columns, min_interactions, k_core, min_rating, repeats, titles, valid_file, test_file)
    source = options.data_values(data, *reading)
    given: dict[str, Any] = {
        "method": method,
        "protocol": protocol,
        "rounds": rounds,
        "seed": seed,
        "plugins": with_,
        "settings": parse_settings(set_) if set_ else None,
        "select": select,
        "patience": patience,
        "participation": participation,
        "epsilon": epsilon,
        "delta": delta,
        "max_epsilon": max_epsilon,
        "fresh_steps": fresh_steps,
        "evaluate_users": evaluate_users,
        "device": device,
        "engine": engine,
        "channel": tuple(parse(stage)) if stage else None,
        "aggregator": aggregator,
        "attack": attack,
        "split": split,
        "ties": ties,
        **source,
    }
    given = {key: value for key, value in given.items() if value is not None}
    if resume is not None and (given or preset or track or config is not None or out is not None):
        raise UserError("--resume continues a run as it was configured; leave out the other options")
    if method is None and config is None and (with_ or set_ or preset):
        raise UserError("--with, --set and --preset belong to a method; name it, such as: federec train pfedrec")
    from federec.runs.config import fewer_rounds
    from federec.runtimes.distributed import joined

    with joined() as group:
        output = Output(quiet, as_json, group)
        if resume is not None:
            _resume(resume, output)
            return
        with group.together():
            interactions, why = None, ""
            if method is None and config is None:
                interactions, chosen, why = _choose(source)
                given |= chosen
            resolved, asked = _resolve(config, preset, given)
        if why:
            output.say(f"method {resolved.method}: {why}; PFedRec: federec train pfedrec")
        for sentence in fewer_rounds(resolved, asked):
            output.say(sentence)
        _start(resolved, interactions, out, track or [], output)


class Output:
    """What a run says: only in one of its processes."""

    def __init__(self, quiet: bool, as_json: bool, group: Group) -> None:
        self.quiet, self.as_json, self.group = quiet or not group.first, as_json, group

    def say(self, line: str) -> None:
        """A line beside the result, also of a quiet run: that has no progress bar."""
        if self.group.first:
            typer.echo(line, err=True)


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


_READING = ("columns", "min_interactions", "k_core", "min_rating", "repeats", "titles", "held_out", "split", "ties")
"""Settings of a run that belong to its data: other data begins without them."""


_DECIDE_NOISE = {"epsilon", "delta", "max_epsilon", "rounds", "participation", "data", "method", "settings"}
"""Options that change which noise an epsilon asks for."""


def _without_multiplier(stage: dict[str, Any]) -> dict[str, Any]:
    """A stage of a run with an epsilon, whose noise is to be solved for again."""
    solved = stage["stage"] in ("central-noise", "distributed-noise")
    return {key: value for key, value in stage.items() if not (solved and key == "multiplier")}


def _choose(source: dict[str, Any]) -> tuple[Interactions, dict[str, Any], str]:
    """The data, the method for it with its settings, and why that one."""
    from federec.methods.default import default_method
    from federec.runs.config import RunConfig

    data = RunConfig.checked(**source).load()
    chosen = default_method(data)
    return data, {"method": chosen.name, "settings": chosen.settings}, chosen.why


def _resolve(config: Path | None, preset: str | None, given: dict[str, Any]) -> tuple[RunConfig, int | None]:
    """The configuration file, if any, with the preset and the given options over it; and the rounds that these ask
    for."""
    import yaml

    from federec.files import read_bytes
    from federec.methods import presets
    from federec.methods.references import absolute
    from federec.runs.config import RunConfig

    base = (RunConfig() if config is None else RunConfig.read(config)).model_dump(mode="json")
    if config is not None:
        base["rounds"] = yaml.safe_load(read_bytes(config)).get("rounds")  # as asked for, which may be too many
    del base["sources"]  # of the run to repeat; this one is of the files as they are now
    if absolute(given.get("method", base["method"])) != base["method"]:
        base |= {"plugins": (), "settings": {}, "rounds": None, "participation": None, "aggregator": None}
    if given.get("protocol", base["protocol"]) != base["protocol"]:
        base["select"] = None
    if given.get("data", base["data"]) != base["data"]:
        fresh = RunConfig().model_dump(mode="json")
        base |= {key: fresh[key] for key in _READING}
    if base["epsilon"] is not None and given.keys() & _DECIDE_NOISE:
        base["channel"] = [_without_multiplier(stage) for stage in base["channel"] or ()]
    run = base | given
    found = presets.preset(run["method"], preset, run["plugins"], run["data"]) if preset else {}
    of_run = {key: value for key, value in found.items() if key in presets.RUN_SETTINGS}
    of_method = {key: value for key, value in found.items() if key not in presets.RUN_SETTINGS}
    run, settings = base | of_run | given, base["settings"] | of_method | given.get("settings", {})
    return RunConfig.checked(**run | {"settings": settings}), run["rounds"]


def _start(config: RunConfig, loaded: Interactions | None, out: Path | None, track: list[str], output: Output) -> None:
    from federec.cli.announce import announcements, costs
    from federec.runs.folder import RunFolder
    from federec.runtimes.local import run
    from federec.tracking.registry import checked

    group = output.group
    if group.restarts and out is None:
        raise UserError("with torchrun's --max-restarts, name the folder with --out, so that a restart finds the run")
    folder = RunFolder(group.agree(out or free_folder(config)))

    def job(on_round: OnRound) -> Run:
        with group.together():
            again = group.restarts and folder.started
            if group.first and not again:  # before the data is read, which may take long
                folder.refuse_other()
                checked(track, folder.path)
            data = config.load() if loaded is None else loaded
        for sentence in announcements(config, data):
            output.say(sentence)

        def watched(line: Line, rounds: int) -> None:
            for sentence in costs(line, rounds) if line["round"] == 1 else ():
                output.say(sentence)
            on_round(line, rounds)

        # Its origin has the whole path.
        return run(config.model_copy(update=data.origin), data, folder, watched, group, track=track)

    _watch(job, folder, output)


def _resume(path: Path, output: Output) -> None:
    from federec.runs.folder import RunFolder
    from federec.runtimes.local import resume

    _watch(lambda on_round: resume(path, on_round=on_round, group=output.group), RunFolder(path), output)


def _watch(job: Callable[[OnRound], Run], folder: RunFolder, output: Output) -> None:
    """Run with a progress bar, end with the table; Ctrl-C or the loss of another process says how to go on."""
    from federec.cli.progress import progress
    from federec.runtimes.distributed import Lost

    then = f"continue with: federec train --resume {shlex.quote(str(folder.path))}"
    if output.group.restarts:
        then = f"unless torchrun restarts it, {then}"
    try:
        with progress(output.quiet) as on_round:
            run = job(on_round)
    except Lost as error:
        raise Lost(f"{error}; {then}, under torchrun or not") from None
    except KeyboardInterrupt:
        if output.group.first:
            typer.echo(f"\nstopped; {then if folder.started else 'nothing was written'}", err=True)
        raise typer.Exit(130) from None
    if output.group.first:
        show_run(run.result, folder.path, output.as_json)


def show_run(result: dict[str, Any], folder: Path, as_json: bool) -> None:
    """The end of a run: its figures, and where they are kept."""
    from federec.reporting.tables import run_table

    report = folder / "report.html"
    show({"run": str(folder), "report": str(report), **result}, as_json, run_table)
    if not as_json:
        typer.echo(f"run    {folder}\nreport {report}")


def free_folder(config: RunConfig) -> Path:
    """A folder under runs/ with the name of the run, with a number behind it where that is taken."""
    from federec.runs.config import name_of

    name = name_of(config, config.build())
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for path in map(Path("runs").joinpath, names) if not path.exists())
