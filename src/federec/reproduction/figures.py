"""Figures of results pages as SVG text; the same data gives the same text. Needs the extra `results`."""

from __future__ import annotations

import io

import matplotlib
from matplotlib import pyplot as pyplot
from matplotlib.figure import Figure

matplotlib.use("Agg")
matplotlib.rcParams.update({"svg.hashsalt": "federec", "svg.fonttype": "none", "font.size": 9})


def svg(figure: Figure) -> str:
    """The figure as SVG text. The figure is closed."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return text.getvalue()
