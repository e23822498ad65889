"""What a figure is: where its data comes from, how it is drawn and what its caption says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from federec.reproduction.drawings.look import Look

Row = dict[str, str | int | float]
Rows = list[Row]
"""The data of a figure, as its CSV has it: every row has the same columns."""


@dataclass(frozen=True)
class Request:
    """What a figure is measured on."""

    data: str = "ml-100k"
    """A named set or a file."""
    rounds: int = 100
    seed: int = 0
    runs: Path = Path("runs/figures")
    """Where runs are kept, so that none is trained twice."""
    say: Callable[[str], None] = field(default=print, compare=False)
    """Called with a line before something that takes long."""


@dataclass(frozen=True)
class Drawing:
    """One figure."""

    name: str
    source: str
    """The figure of a paper that it repeats, or `ours`."""
    shows: str
    """What it shows, in a few words."""
    data: Callable[[Request], Rows]
    """Measure: train or load what the figure needs."""
    draw: Callable[[Rows, Look], Figure]
    caption: Callable[[Rows], str]
    """What to see, in one to three sentences, from the same rows."""
    rounds: int = 100
    """Rounds of its runs, where nothing else is asked for."""
    sets: tuple[str, ...] = ("ml-100k",)
    """The data sets that it shows, where nothing else is asked for. A figure of several has a column `data`."""


def column(rows: Iterable[Row], name: str) -> list[float]:
    """The numbers of one column."""
    return [float(row[name]) for row in rows]


def groups(rows: Iterable[Row], *names: str) -> dict[str, Rows]:
    """The rows by their values of some columns, joined by a space, in the order in which these occur."""
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(" ".join(str(row[name]) for name in names), []).append(row)
    return found


def percent(value: float) -> str:
    """0.4567 -> 45.7 %."""
    return f"{100 * value:.1f} %"
