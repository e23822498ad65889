"""`federec reproduce`: measure a published table again."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer
from typer import Argument, Option


def reproduce(
    table: str = Argument(
        ...,
        help="pfedrec-table2, pfedrec-table3, pfedrec-table4, fedrap, plgc, fedrecgel; or summary, the claims of all.",
    ),
    data: list[str] | None = Option(None, help="Only this data set; may be repeated. [default: all of the table]"),
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
    from federec.errors import UserError
    from federec.evaluation.protocols import PROTOCOLS
    from federec.reproduction.cells import Cell, estimate, run_cells, unfinished
    from federec.reproduction.grids import grid
    from federec.reproduction.pages import write_page
    from federec.reproduction.summary import write_summary

    if table == "summary":  # written from the finished runs of all tables
        typer.echo(f"page   {write_summary(seeds, runs, out)}")
        return
    chosen = grid(table)
    cells = [
        Cell(row, name, protocol, seed, rounds)
        for name in data or chosen.data
        for seed in range(seeds)
        for row in chosen.rows
        if not only or any(word in row.label for word in only)
        for protocol in PROTOCOLS
    ]
    if not cells:
        labels = ", ".join(row.label for row in chosen.rows)
        raise UserError(f"no row of {table} has '{' or '.join(only or [])}' in its name; its rows: {labels}")
    for cell in cells:
        cell.config()
    failures = []
    if not page_only and (todo := unfinished(cells, runs)):
        minutes = estimate(cells, runs, typer.echo) / 60 / jobs
        typer.echo(
            f"{len(todo)} of {len(cells)} cells to run, about {minutes:.0f} minutes with {jobs} at the same time"
        )
        try:
            failures = run_cells(cells, runs, jobs, typer.echo)
        except KeyboardInterrupt:
            typer.echo("stopped; run the same command to continue", err=True)
            raise typer.Exit(130) from None
    for cell, words in failures:
        typer.echo(f"failed {cell.row.label} {cell.data} {cell.protocol} seed {cell.seed}: {words}", err=True)
    chosen_data = [word for name in data or () for word in ("--data", name)]
    command = shlex.join(["federec", "reproduce", table, *chosen_data, "--seeds", str(seeds)])
    typer.echo(f"page   {write_page(chosen, cells, runs, out, command)}")
    if failures:
        raise typer.Exit(1)
