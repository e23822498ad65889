"""A live line for a run: loss, validation metric, seconds per round, time left."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

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
        with _logged(_print):
            yield _log
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = ("round", MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def on_round(line: Line, rounds: int) -> None:
            bar.update(task, total=rounds, completed=line["round"], description=describe(line))

        with _logged(lambda text: bar.update(task, description=text)):
            yield on_round


@contextmanager
def _logged(show: Callable[[str], None]) -> Iterator[None]:
    """Show what federec logs."""

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            show(record.getMessage())

    log, handler = logging.getLogger("federec"), Shown()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def describe(line: Line) -> str:
    """One line about a round: loss, validation metric, seconds."""
    loss = "" if line["loss"] is None else f"loss {line['loss']:.4g}  "
    seconds = line["seconds"]["train"] + line["seconds"]["evaluate"]
    return f"{loss}valid hr@10 {line['valid']['hr@10']:.4f}  {seconds:.2f} s a round"


def _log(line: Line, rounds: int) -> None:
    number = line["round"]
    if number in (1, rounds) or number % max(1, rounds // 10) == 0:
        _print(f"round {number}/{rounds}  {describe(line)}")


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
