"""`federec compare`: finished runs side by side."""

from __future__ import annotations

from pathlib import Path

import typer
from typer import Argument, Option

from federec.cli.names import METRICS, one_of
from federec.errors import UserError


def compare(
    runs: list[Path] = Argument(..., readable=False, help="Run folders."),
    intervals: bool = Option(
        False, "--intervals", help="Differences to the baseline, with paired 95 % intervals over users and seeds."
    ),
    baseline: Path | None = Option(
        None, readable=False, help="With intervals: the run to compare the others with. [default: the first one]"
    ),
    metric: str | None = Option(
        None,
        autocompletion=one_of(*METRICS),
        help="The metric of the intervals, such as sampled.hr@10. [default: full.ndcg@10]",
    ),
    csv: bool = Option(False, "--csv", help="Print CSV, with intervals."),
    latex: bool = Option(False, "--latex", help="Print a LaTeX table, with intervals."),
    as_json: bool = Option(False, "--json", help="Print JSON, with intervals."),
) -> None:
    """Print one table of runs; protocols are kept apart.

    Runs that differ only in their seed are one row, with their mean. Folders that hold no finished run are left out.
    """
    if sum((csv, latex, as_json)) > 1:
        raise UserError("choose one of --csv, --latex and --json")
    folders = finished(runs)
    if not (intervals or baseline or metric or csv or latex or as_json):
        from federec.reporting.tables import compare_table
        from federec.runs.record import RunRecord

        compare_table([RunRecord(path).result() for path in folders])
        return
    from federec.reproduction.compare import compare as compared

    comparison = compared(folders, baseline=baseline, metric=metric or "full.ndcg@10")
    if csv:
        typer.echo(comparison.csv(), nl=False)
    elif latex:
        typer.echo(comparison.latex(), nl=False)
    elif as_json:
        typer.echo(comparison.json())
    else:
        typer.echo(str(comparison))


def finished(paths: list[Path]) -> list[Path]:
    """The folders of finished runs; says which others were left out."""
    from federec.runs.record import RunRecord

    finished, no_runs = [], 0
    for folder in map(RunRecord, paths):
        if folder.path.is_file():  # a file in runs/* is no run
            continue
        if folder.finished or not folder.path.exists():  # a path that is not there is refused when it is read
            finished.append(folder.path)
        elif folder.started:
            typer.echo(f"left out: {folder.path} is not finished; federec train --resume {folder.path}", err=True)
        else:
            no_runs += 1
    if no_runs:
        typer.echo(f"left out: {no_runs} {'folder that is' if no_runs == 1 else 'folders that are'} no run", err=True)
    if not finished:
        raise UserError("there is no finished run among these; name run folders that `federec train` wrote")
    return finished
