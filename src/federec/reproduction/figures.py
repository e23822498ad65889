"""Figures of results pages: SVG text, the same for the same figures. Needs the extra `results`."""

from __future__ import annotations

import io

import matplotlib
from matplotlib import pyplot as pyplot
from matplotlib.figure import Figure

matplotlib.use("Agg")
matplotlib.rcParams.update({"svg.hashsalt": "federec", "svg.fonttype": "none", "font.size": 9})


def svg(figure: Figure) -> str:
    """A figure as text; it is closed."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return text.getvalue()
