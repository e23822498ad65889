"""`federec compare`: finished runs side by side."""

from __future__ import annotations

from pathlib import Path

import typer
from typer import Argument


def compare(
    runs: list[Path] = Argument(..., readable=False, help="Run folders."),
) -> None:
    """One table of runs: seeds are averaged, protocols never share a column."""
    from federec.errors import UserError
    from federec.reporting.tables import compare_table
    from federec.runs.folder import RunFolder

    folders = [RunFolder(path) for path in runs if path.is_dir() or not path.exists()]  # a file in runs/* is no run
    unfinished = [folder for folder in folders if folder.started and not folder.finished]
    for folder in unfinished:
        typer.echo(f"left out: {folder.path} is not finished; federec train --resume {folder.path}", err=True)
    results = [folder.result() for folder in folders if folder not in unfinished]
    if not results:
        raise UserError("there is no finished run among these; name run folders that `federec train` wrote")
    compare_table(results)
