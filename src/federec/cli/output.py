"""What a command prints: a table for people, or JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

import typer
from typer import Option

Values = TypeVar("Values")

JSON = Option(False, "--json", help="Print JSON instead of a table.")


def show(values: Values, as_json: bool, table: Callable[[Values], None]) -> None:
    """Print values: as JSON, or as the table that `table` prints. Values are lists and dicts of plain values."""
    if as_json:
        typer.echo(json.dumps(values, indent=2, ensure_ascii=False))
    else:
        table(values)
