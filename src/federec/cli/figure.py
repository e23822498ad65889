"""`federec figure`: draw a figure of a paper again, from runs of today's code."""

from __future__ import annotations

from pathlib import Path

import typer
from typer import Argument, Option

from federec.cli.names import FIGURES, one_of
from federec.cli.options import SET_NAMES


def figure(
    name: str | None = Argument(
        None, autocompletion=one_of(*FIGURES), help="Which figure. Without a name, all are listed."
    ),
    data: str = Option("ml-100k", autocompletion=SET_NAMES, help="A named set or a file."),
    rounds: int | None = Option(None, min=1, help="Rounds of each run. [default: that of the figure]"),
    seed: int = Option(0, min=0, help="Seed of all random numbers."),
    out: Path = Option(Path("docs/figures"), help="Folder of the figure, its data and its caption."),
    runs: Path = Option(Path("runs/figures"), help="Folder of runs and measurements; what is there is not repeated."),
) -> None:
    """Draw a figure of a paper from new runs.

    Writes it as SVG (light and dark) and PNG, with its data as CSV and a caption.
    What it needs is trained first and kept, so that the same command only draws. You can stop at any time.
    """
    from federec.errors import needs

    needs("matplotlib", "results")
    from federec.reproduction.drawings.base import Request
    from federec.reproduction.drawings.make import DRAWINGS, drawing, make

    if name is None:
        width = max(map(len, DRAWINGS))
        sources = max(len(each.source) for each in DRAWINGS.values())
        for each in DRAWINGS.values():
            typer.echo(f"{each.name:{width}}  {each.source:{sources}}  {each.shows}")
        return
    chosen = drawing(name)
    request = Request(data, rounds or chosen.rounds, seed, runs, lambda line: typer.echo(line, err=True))
    try:
        files = make(chosen, request, out)
    except KeyboardInterrupt:
        typer.echo("stopped; run the same command to continue", err=True)
        raise typer.Exit(130) from None
    for file in files:
        typer.echo(f"wrote  {file}")
