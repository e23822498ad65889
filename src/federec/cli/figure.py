"""`federec figure`: draw a figure of a paper again, from runs of today's code."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer
from typer import Argument, Option

from federec.cli.names import FIGURES, one_of
from federec.cli.options import SET_NAMES


def figure(
    name: str | None = Argument(
        None, autocompletion=one_of(*FIGURES, "all"), help="Which figure, or all. Without a name, they are listed."
    ),
    data: list[str] | None = Option(
        None,
        autocompletion=SET_NAMES,
        help="A named set or a file; may be repeated for a figure of several. [default: those of the figure]",
    ),
    rounds: int | None = Option(None, min=1, help="Rounds of each run. [default: that of the figure]"),
    seed: int = Option(0, min=0, help="Seed of all random numbers."),
    out: Path = Option(Path("docs/figures"), help="Folder of the figure, its data and its caption."),
    runs: Path = Option(Path("runs/figures"), help="Folder of runs and measurements; what is there is not repeated."),
    page_only: bool = Option(False, "--page-only", help="Run nothing; draw from the CSVs in the folder."),
) -> None:
    """Draw a figure of a paper from new runs.

    Writes it as SVG and PNG (light and dark), with its data as CSV and a caption; for all of them also a page.
    What it needs is trained first and kept, so that the same command only draws. You can stop at any time.
    """
    from federec.errors import needs

    needs("matplotlib")
    from federec.reproduction.drawings.base import Request
    from federec.reproduction.drawings.make import DRAWINGS, drawing, index, make, redraw

    if name is None:
        width = max(map(len, DRAWINGS))
        sources = max(len(each.source) for each in DRAWINGS.values())
        for each in DRAWINGS.values():
            typer.echo(f"{each.name:{width}}  {each.source:{sources}}  {each.shows}")
        return
    for chosen in DRAWINGS.values() if name == "all" else [drawing(name)]:
        request = Request(rounds=rounds or chosen.rounds, seed=seed, runs=runs, say=partial(typer.echo, err=True))
        try:
            files = redraw(chosen, out) if page_only else make(chosen, request, out, data or ())
        except KeyboardInterrupt:
            typer.echo("stopped; run the same command to continue", err=True)
            raise typer.Exit(130) from None
        for file in files:
            typer.echo(f"wrote  {file}")
    if name == "all":
        typer.echo(f"page   {index(out)}")
