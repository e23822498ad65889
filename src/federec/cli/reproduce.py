"""`federec reproduce`: measure a published table again."""

from __future__ import annotations

from pathlib import Path

import typer
from typer import Argument, Option

from federec.cli.names import TABLES, one_of
from federec.cli.options import SET_NAMES


def reproduce(
    table: str = Argument(
        ...,
        autocompletion=one_of(*TABLES),
        help="pfedrec-table2, pfedrec-table3, pfedrec-table4, fedrap, plgc, fedrecgel; or summary, the claims of all.",
    ),
    data: list[str] | None = Option(
        None, autocompletion=SET_NAMES, help="Only this data set; may be repeated. [default: all of the table]"
    ),
    seeds: int = Option(5, min=1, help="Number of runs per cell, with the seeds 0, 1, ..."),
    jobs: int = Option(1, min=1, help="Number of cells to run at the same time, one thread each."),
    rounds: int | None = Option(None, min=1, help="Rounds of each run. [default: that of each method]"),
    only: list[str] | None = Option(None, help="Only rows whose name contains this; may be repeated."),
    runs: Path = Option(Path("runs/reproduce"), help="Folder of the runs; finished runs are not repeated."),
    out: Path = Option(Path("docs/results"), help="Folder in which the page is written."),
    page_only: bool = Option(False, "--page-only", help="Run nothing; write the page from the finished runs."),
) -> None:
    """Measure a published table again, under both protocols.

    Its results page is written at the end. You can stop at any time; the same command continues.
    """
    from federec.reproduction.reproduce import reproduce as measure

    try:
        found = measure(
            table,
            data=data or (),
            seeds=seeds,
            jobs=jobs,
            rounds=rounds,
            only=only or (),
            runs=runs,
            out=out,
            page_only=page_only,
            say=typer.echo,
        )
    except KeyboardInterrupt:
        typer.echo("stopped; run the same command to continue", err=True)
        raise typer.Exit(130) from None
    for line in found.failed:
        typer.echo(f"failed {line}", err=True)
    typer.echo(f"page   {found.page}")
    if found.failed:
        raise typer.Exit(1)
