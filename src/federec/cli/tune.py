"""`federec tune`: find settings on validation."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer
from typer import Argument, Option


def tune(
    method: str = Argument(..., help="Name of a method, path/to/mine.py:Mine or package.module:Mine."),
    data: str = Option("tastes", help="A named set, a file of interactions, or a generated folder."),
    with_: list[str] | None = Option(
        None, "--with", help="Put a plug-in on the method: a name or path/to/mine.py:Mine; may be repeated."
    ),
    over: list[str] | None = Option(None, help="A setting to search; may be repeated. [default: all real numbers]"),
    trials: int = Option(20, min=1, help="How many settings to try, earlier ones of the same search counted in."),
    protocol: str = Option("clean", help="clean or paper."),
    rounds: int | None = Option(None, help="Rounds of each trial. [default: the method's own]"),
    seed: int = Option(0, help="Seed of the trials and of the search."),
    runs: Path = Option(Path("runs/tune"), help="Where trials are kept; the same command goes on where it stopped."),
) -> None:
    """Search settings on validation, by NDCG@10 against all items; the test items are never looked at."""
    import yaml

    from federec.cli.train import name_of
    from federec.reproduction.tune import search
    from federec.runs.config import RunConfig

    given = {"method": method, "plugins": tuple(with_ or ()), "data": data, "protocol": protocol, "seed": seed}
    config = RunConfig.checked(**given, rounds=rounds)
    best = search(config, config.load(), over or [], trials, runs / f"{name_of(config)}.db", typer.echo).best
    typer.echo("best by validation:")
    typer.echo(yaml.safe_dump(best, sort_keys=False).rstrip())
    sets = " ".join(f"--set {key}={value:.4g}" for key, value in best.items())
    plugins = [word for plugin in with_ or () for word in ("--with", plugin)]
    command = shlex.join(["federec", "train", method, "--data", data, "--protocol", protocol, *plugins])
    typer.echo(f"use it: {command} {sets}")
