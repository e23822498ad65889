"""Figures of pages as SVG text; the same data gives the same text. Needs the extra `results`."""

from __future__ import annotations

import io

import matplotlib
from matplotlib import pyplot as pyplot
from matplotlib.figure import Figure

matplotlib.use("Agg")
matplotlib.rcParams.update({"svg.hashsalt": "federec", "svg.fonttype": "none", "font.size": 9})

_SCHEME = {
    # colour of matplotlib: its name, in the light, in the dark
    "#ffffff": ("--paper", "#ffffff", "#1e2129"),
    "#000000": ("--ink", "#1f2328", "#e6e8eb"),
    "#57606a": ("--soft", "#59636e", "#aab2bd"),
    "#b0b0b0": ("--grid", "#b0b0b0", "#7d8590"),
    "#cccccc": ("--frame", "#cccccc", "#454c59"),
}


def themed(text: str) -> str:
    """The SVG text with paper, ink and grid of the page around it: browsers hand their colour scheme to its images."""
    light, dark = (" ".join(f"{each[0]}: {each[place]};" for each in _SCHEME.values()) for place in (1, 2))
    style = f":root {{ fill: var(--ink); {light} }} @media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    for colour, (name, *_) in _SCHEME.items():
        text = text.replace(f": {colour}", f": var({name})")
    return text.replace("<defs>", f'<style type="text/css">{style}</style>\n <defs>', 1)


def svg(figure: Figure) -> str:
    """The figure as SVG text that follows the theme of its page. The figure is closed."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return themed(text.getvalue())
