"""`federec reproduce`: measure a published table again."""

from __future__ import annotations

from pathlib import Path

import typer
from typer import Argument, Option

from federec.cli.names import TABLES, one_of
from federec.cli.options import SET_NAMES

TRIALS = 24


def reproduce(
    table: str = Argument(
        ...,
        autocompletion=one_of(*TABLES),
        help="pfedrec-table2, pfedrec-table3, pfedrec-table4, fedrap, plgc, fedrecgel; tuned, every method with one "
        "budget of tuning; summary, what is left of the claims; figures, those of the papers; or all.",
    ),
    data: list[str] | None = Option(
        None, autocompletion=SET_NAMES, help="Only this data set; may be repeated. [default: all of the table]"
    ),
    tuned: bool = Option(False, "--tuned", help="Also with settings searched on validation."),
    trials: int = Option(TRIALS, min=1, help="Settings that are tried for each method and data set."),
    seeds: int = Option(5, min=1, help="Most runs of a cell, with seeds 0, 1, ...; fewer with papers' settings."),
    jobs: int = Option(1, min=1, help="Processes at the same time, one thread each."),
    rounds: int | None = Option(None, min=1, help="Rounds of each run. [default: that of each method]"),
    only: list[str] | None = Option(None, help="Only rows whose name contains this; may be repeated."),
    device: str = Option("cpu", help="Hardware: cpu or cuda."),
    out: Path = Option(Path("docs/results"), help="Folder of the pages, and of the records that they are made of."),
    page_only: bool = Option(False, "--page-only", help="Run nothing; write the pages from the records."),
) -> None:
    """Measure a published table again, under both protocols.

    Its results page is written at the end. You can stop at any time; the same command continues. Figures are drawn
    into the folder `figures` beside that of the pages.
    """
    from federec.reproduction.reproduce import reproduce as measure

    try:
        found = measure(
            table,
            data=data or (),
            tuned=tuned,
            trials=trials,
            seeds=seeds,
            jobs=jobs,
            rounds=rounds,
            only=only or (),
            device=device,
            out=out,
            page_only=page_only,
            say=typer.echo,
        )
    except KeyboardInterrupt:
        typer.echo("stopped; run the same command to continue", err=True)
        raise typer.Exit(130) from None
    for line in found.failed:
        typer.echo(f"failed {line}", err=True)
    for page in found.pages:
        typer.echo(f"page   {page}")
    if found.failed:
        raise typer.Exit(1)
