"""A live line while a run that a Python program started is training: in a notebook, or on a terminal."""

from __future__ import annotations

import importlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from federec.runs.folder import Line
    from federec.runs.loop import OnRound

_PAUSE = 0.1
"""Seconds between two updates of the line at least."""


@contextmanager
def live(
    wanted: bool | None, on_round: OnRound | None = None, before: Callable[[], str] = lambda: ""
) -> Iterator[OnRound]:
    """Gives the function to call after every round, which also calls `on_round`. The line is shown in notebooks and on
    terminals; elsewhere only if it is `wanted`, and never if False. What federec logs in between, such as that kernels
    are compiled, is shown in it, too. `before` gives what the line begins with."""
    show = None if wanted is False else _notebook() or _terminal(wanted is True)
    latest = 0.0

    def call(line: Line, rounds: int) -> None:
        nonlocal latest
        if on_round is not None:
            on_round(line, rounds)
        due = line["round"] in (1, rounds) or time.monotonic() - latest > _PAUSE
        if show is not None and due:
            show(f"{before()}round {line['round']}/{rounds}  {describe(line)}")
            latest = time.monotonic()

    if show is None:
        yield call
        return
    show("starting")
    try:
        with logged(show):
            yield call
    finally:
        show("")


def describe(line: Line) -> str:
    """One line about a round: loss, validation metric, seconds."""
    loss = "" if line["loss"] is None else f"loss {line['loss']:.4g}  "
    seconds = line["seconds"]["train"] + line["seconds"]["evaluate"]
    if "valid_full" in line:
        value = f"valid ndcg@10 {line['valid_full']['ndcg@10']:.4f} of all items"
    else:
        value = f"valid hr@10 {line['valid']['hr@10']:.4f} of 100 items"
    return f"{loss}{value}  {seconds:.2f} s a round"


def _notebook() -> Callable[[str], None] | None:
    """What replaces a line below the running cell, where the last one stays; None outside of notebooks."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if getattr(shell, "kernel", None) is None:
        return None
    # By name: whether IPython is installed must not change what the type checker says
    display = importlib.import_module("IPython.display").display
    handle: Any = display({"text/plain": ""}, raw=True, display_id=True)
    return lambda text: handle.update({"text/plain": text}, raw=True) if text else None


def _terminal(wanted: bool) -> Callable[[str], None] | None:
    """What replaces the last line of a terminal. Elsewhere, such as in a pipe, lines follow each other if they are
    `wanted`."""
    if sys.stderr.isatty():
        return lambda text: print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    return (lambda text: print(text, file=sys.stderr, flush=True) if text else None) if wanted else None


@contextmanager
def logged(show: Callable[[str], None]) -> Iterator[None]:
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
