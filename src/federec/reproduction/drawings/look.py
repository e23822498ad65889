"""How figures look: light or dark, one palette for colour-blind readers, text that is legible at half size."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

WIDTH = 9.0
"""Inches. Text of 13 points is then legible where a page shows a figure at half its size."""

_SPACED = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
"""Readers' fonts may be wider than those that the layout was measured with."""
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
LINES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Look:
    """Colours of a figure. The palette is that of Okabe and Ito; its first colour must be seen on the ground."""

    name: Literal["light", "dark"]
    ground: str
    ink: str
    faint: str
    """Grid lines, and what is only there for comparison."""
    palette: tuple[str, ...]
    surface: str
    """Colour map of a quantity."""

    def colour(self, number: int) -> str:
        """A colour for the n-th of several things."""
        return self.palette[number % len(self.palette)]

    @property
    def parameters(self) -> Any:
        """Settings of matplotlib, by name. The same data gives the same text of an SVG."""
        ink = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "axes.titlecolor")
        ground = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
        return {
            **dict.fromkeys(ink, self.ink),
            **dict.fromkeys(ground, self.ground),
            "grid.color": self.faint,
            "grid.alpha": 0.5,
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 14,
            "font.size": 13,
            "legend.frameon": False,
            "lines.linewidth": 2.2,
            "svg.hashsalt": "federec",
            "svg.fonttype": "none",
        }


_OTHERS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00")
LIGHT = Look("light", "#ffffff", "#1f2328", "#b4bac1", ("#0072B2", *_OTHERS, "#56B4E9", "#000000"), "cividis")
DARK = Look("dark", "#0d1117", "#e6edf3", "#4a525c", ("#56B4E9", *_OTHERS, "#F0E442", "#ffffff"), "cividis")


def panels(count: int, height: float, columns: int | None = None, **options: Any) -> tuple[Figure, list[Axes]]:
    """An empty figure with panels side by side, `columns` in a row; labels never overlap."""
    columns = columns or count
    lines = -(-count // columns)
    figure = Figure(figsize=(WIDTH, height * lines), layout=_SPACED)
    grid = figure.subplots(lines, columns, squeeze=False, **options)
    axes = [each for line in grid for each in line]
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


def legend(figure: Figure, axes: Axes, columns: int) -> None:
    """The names of what is drawn, below the panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def label(axes: Axes, x: str, y: str, title: str = "") -> None:
    """Say what is on the axes, with units."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title)


def styled(look: Look, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Name -> colour and line of each of several curves: they differ in both."""
    return {
        name: {"color": look.colour(place), "linestyle": LINES[place % len(LINES)], "label": name}
        for place, name in enumerate(names)
    }


def rendered(figure: Figure, look: Look, kind: Literal["svg", "png"]) -> bytes:
    """The figure as the content of a file. Parts of an SVG that are drawn as pixels have fewer of them."""
    content = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with matplotlib.rc_context(look.parameters):
        figure.savefig(content, format=kind, dpi=110 if kind == "png" else 85, metadata=metadata)
    return content.getvalue()


def image(words: str, stem: str) -> str:
    """A figure in Markdown, light or dark as the page is; `words` say what it shows."""
    return f"![{words}]({stem}.svg#gh-light-mode-only)\n![{words}, dark]({stem}-dark.svg#gh-dark-mode-only)\n"
