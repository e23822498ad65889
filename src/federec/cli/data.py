"""`federec data`: list, get, describe and generate data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

from federec.cli.options import (
    COLUMNS,
    K_CORE,
    MIN_INTERACTIONS,
    MIN_RATING,
    REPEATS,
    SET_NAMES,
    SPLIT,
    TEST_FILE,
    TITLES,
    VALID_FILE,
    data_values,
)
from federec.cli.output import JSON, show

app = typer.Typer(help="Data sets: list, get, describe, generate.", no_args_is_help=True)


@app.command("list")
def list_(as_json: bool = JSON) -> None:
    """List the named sets and where they are on this machine."""
    from federec.data.sets import status
    from federec.reporting.tables import set_row, sets_table

    show([set_row(known, path) for known, path in status()], as_json, sets_table)


@app.command()
def get(name: str = Argument(..., autocompletion=SET_NAMES, help="Name of the set.")) -> None:
    """Fetch a named set; if it cannot be fetched, say where to get it."""
    from federec.data import fetch

    fetch.get(name, typer.echo)


@app.command()
def describe(
    data: str = Argument(
        ..., autocompletion=SET_NAMES, help="A named set, a file of interactions, or a generated folder."
    ),
    columns: str | None = COLUMNS,
    min_interactions: int | None = MIN_INTERACTIONS,
    k_core: int | None = K_CORE,
    min_rating: float | None = MIN_RATING,
    repeats: str | None = REPEATS,
    titles: Path | None = TITLES,
    valid_file: Path | None = VALID_FILE,
    test_file: Path | None = TEST_FILE,
    split: str | None = SPLIT,
    as_json: bool = JSON,
) -> None:
    """Show what a set or a file contains, as federec reads it."""
    from federec.data import describe as describing
    from federec.data.sets import load
    from federec.reporting.tables import summary_table

    values = data_values(data, columns, min_interactions, k_core, min_rating, repeats, titles, valid_file, test_file)
    loaded = load(values.pop("data"), **values)

    def table(described: dict[str, Any]) -> None:
        roles = ", ".join(f"{role}={column}" for role, column in loaded.columns.items())
        summary_table(described | {"columns": roles or None, "unused_columns": ", ".join(loaded.unused) or None})
        for remark in describing.remarks(loaded):
            typer.echo(remark)

    show(describing.describe(loaded, split), as_json, table)


@app.command()
def generate(
    users: int = Option(..., min=1, help="Number of users."),
    items: int = Option(..., min=1, help="Number of items; a few of them are popular."),
    interactions: int = Option(..., min=1, help="Number of distinct (user, item) pairs."),
    out: Path = Option(..., readable=False, help="Folder to write; train on it with --data."),
    seed: int = Option(0, min=0, help="Seed of all random numbers."),
) -> None:
    """Generate a random set of any size, to try federec at scale."""
    from federec.data.generate import generate as write

    write(out, users, items, interactions, seed)
    typer.echo(f"{out}: {interactions:,} interactions of {users:,} users with {items:,} items")
