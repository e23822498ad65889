"""`federec data`: list, get, describe and generate data sets."""

from __future__ import annotations

from pathlib import Path

import typer
from typer import Argument, Option

from federec.cli.output import JSON, show

app = typer.Typer(help="Data sets: list, get, describe, generate.", no_args_is_help=True)


@app.command("list")
def list_(as_json: bool = JSON) -> None:
    """List the named sets and where they are on this machine."""
    from federec.data.sets import status
    from federec.reporting.tables import set_row, sets_table

    show([set_row(known, path) for known, path in status()], as_json, sets_table)


@app.command()
def get(name: str = Argument(..., help="Name of the set.")) -> None:
    """Fetch a named set; if it cannot be fetched, say where to get it."""
    from federec.data import fetch

    fetch.get(name, typer.echo)


@app.command()
def describe(
    data: str = Argument(..., help="A named set, a file of interactions, or a generated folder."),
    columns: str | None = Option(None, help="Columns of the file, such as user=uid,item=mid."),
    min_interactions: int | None = Option(None, min=0, help="Leave out users with fewer rows than this."),
    k_core: int | None = Option(
        None, min=0, help="Leave out users with fewer items, and items with fewer users, than this."
    ),
) -> None:
    """Show what a set or a file contains, as federec reads it."""
    from federec.data.columns import parse_columns
    from federec.data.describe import describe as description
    from federec.data.sets import load
    from federec.reporting.tables import summary_table

    loaded = load(data, parse_columns(columns) if columns else None, min_interactions, k_core)
    summary_table(description(loaded))


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
