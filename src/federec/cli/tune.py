"""`federec tune`: find settings on validation."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import typer
from typer import Argument, Option

from federec.cli import options
from federec.cli.output import JSON, show

_SEARCH = ("method", "over", "trials", "runs", "as_json", "rounds")
"""Parameters of the search, which `train` does not get."""


def tune(
    context: typer.Context,
    method: str = Argument(
        ...,
        autocompletion=options.METHOD_NAMES,
        help="Name of a method, path/to/mine.py:Mine or package.module:Mine.",
    ),
    data: str | None = options.DATA,
    with_: list[str] | None = options.WITH,
    over: list[str] | None = Option(None, help="A setting to search; may be repeated. [default: all real numbers]"),
    trials: int = Option(20, min=1, help="How many settings to try, earlier ones of the same search counted in."),
    protocol: str | None = options.PROTOCOL,
    rounds: int | None = Option(None, help="Rounds of each trial. [default: the method's own]"),
    seed: int = Option(0, help="Seed of the trials and of the search."),
    select: str | None = options.SELECT,
    patience: int | None = options.PATIENCE,
    participation: float | None = options.PARTICIPATION,
    evaluate_users: int | None = options.EVALUATE_USERS,
    device: str | None = options.DEVICE,
    stage: list[str] | None = options.STAGE,
    aggregator: str | None = options.AGGREGATOR,
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
    runs: Path = Option(Path("runs/tune"), help="Where trials are kept; the same command goes on where it stopped."),
    as_json: bool = JSON,
) -> None:
    """Search settings on validation; test items are never used."""
    from federec.data.describe import remarks
    from federec.reproduction.tune import search
    from federec.runs.config import RunConfig, fewer_rounds, name_of
    from federec.stages.registry import parse

    reading = (columns, min_interactions, k_core, min_rating, repeats, titles, valid_file, test_file)
    given: dict[str, Any] = {
        "protocol": protocol,
        "rounds": rounds,
        "split": split,
        "ties": ties,
        "select": select,
        "patience": patience,
        "participation": participation,
        "evaluate_users": evaluate_users,
        "device": device,
        "channel": tuple(parse(stage)) if stage else None,
        "aggregator": aggregator,
    }
    given = {key: value for key, value in given.items() if value is not None}
    given |= {"method": method, "plugins": tuple(with_ or ()), "seed": seed, **options.data_values(data, *reading)}
    config = RunConfig.checked(**given)

    def say(line: str) -> None:
        typer.echo(f"\r\033[K{line}" if sys.stderr.isatty() else line, err=True)  # in place of the live line

    interactions, out = config.load(), runs / f"{name_of(config, config.build())}.db"
    for sentence in (*fewer_rounds(config, rounds), *remarks(interactions)):
        say(sentence)
    try:
        best = search(config, interactions, over or [], trials, out, say, None, None).best
    except KeyboardInterrupt:
        typer.echo("\nstopped; the finished trials are kept, the same command goes on with them", err=True)
        raise typer.Exit(130) from None
    command = [
        "federec",
        "train",
        method,
        *_given(context),
        *_words("--set", (f"{key}={best[key]:.4g}" for key in best)),
    ]
    show({"settings": best, "train": shlex.join(command)}, as_json, _print)


def _given(context: typer.Context) -> Iterator[str]:
    """The options that `train` needs too, as they were given."""
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if isinstance(option, click.Option) and value is not None and option.name not in _SEARCH:
            yield from _words(option.opts[0], value if isinstance(value, list | tuple) else [value])


def _words(option: str, values: Iterable[object]) -> Iterator[str]:
    """An option, once for each of its values."""
    return (word for value in values for word in (option, str(value)))


def _print(found: dict[str, Any]) -> None:
    import yaml

    typer.echo("best by validation:")
    typer.echo(yaml.safe_dump(found["settings"], sort_keys=False).rstrip())
    typer.echo(f"use it: {found['train']}")
