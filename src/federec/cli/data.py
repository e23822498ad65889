"""`federec data`: list, get and describe data sets."""

from __future__ import annotations

import typer
from typer import Argument, Option

app = typer.Typer(help="Data sets: list, get, describe.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_() -> None:
    """Named sets, and where they are on this machine."""
    from federec.data.sets import status
    from federec.reporting.tables import sets_table

    sets_table(status())


@app.command()
def get(name: str = Argument(..., help="Name of the set.")) -> None:
    """Obtain a set, or say where it comes from."""
    from federec.data import fetch

    fetch.get(name, typer.echo)


@app.command()
def describe(
    data: str = Argument(..., help="A named set or a file of interactions."),
    columns: str | None = Option(None, help="Columns of the file, such as user=uid,item=mid."),
    min_interactions: int | None = Option(None, min=0, help="Leave out users with fewer rows."),
    k_core: int | None = Option(None, min=0, help="Leave out users and items with fewer partners."),
) -> None:
    """What is in a set or file, as federec reads it."""
    from federec.data.columns import parse_columns
    from federec.data.describe import describe as facts_of
    from federec.data.sets import load
    from federec.reporting.tables import facts_table

    loaded = load(data, parse_columns(columns) if columns else None, min_interactions, k_core)
    facts_table(facts_of(loaded))
