"""A live line for a run: loss, validation metric, seconds per round, time left."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from federec.reporting.live import describe, logged

if TYPE_CHECKING:
    from federec.runs.folder import Line
    from federec.runs.loop import OnRound


@contextmanager
def progress(quiet: bool) -> Iterator[OnRound]:
    """Gives the function to call after every round. It shows a progress bar on a terminal, about ten lines in all
    elsewhere, and nothing when `quiet`. What federec logs in between, such as that kernels are compiled, is shown
    too."""
    if quiet:
        yield lambda line, rounds: None
        return
    if not sys.stderr.isatty():
        with logged(_print):
            yield _log
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = ("round", MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def on_round(line: Line, rounds: int) -> None:
            bar.update(task, total=rounds, completed=line["round"], description=describe(line))

        with logged(lambda text: bar.update(task, description=text)):
            yield on_round


def _log(line: Line, rounds: int) -> None:
    number = line["round"]
    if number in (1, rounds) or number % max(1, rounds // 10) == 0:
        _print(f"round {number}/{rounds}  {describe(line)}")


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
