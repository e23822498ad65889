"""How many dimensions of the item table are used, with and without PLGC."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from federec.reproduction.drawings.base import Drawing, Request, Rows, column, groups
from federec.reproduction.drawings.look import Look, label, legend, panels
from federec.reproduction.drawings.training import trained

METHODS = ("fedmf", "fedncf", "pfedrec", "fedrap")
RANK, VALUE = "effective rank", "singular value"


def data(request: Request) -> Rows:
    """The effective rank after each round, and the singular values after the last, each over the largest. The rank is
    of no single dimension: its rows have dimension 0."""
    rows: Rows = []
    for method in METHODS:
        for plugins in ((), ("plgc",)):
            name = "+".join((method, *plugins))
            history = trained(request, method, plugins).history
            for line in history:
                rank = next(value for note, value in line["notes"].items() if note.endswith(RANK))
                rows.append({"run": name, "quantity": RANK, "round": line["round"], "dimension": 0, "value": rank})
            values = next(value for note, value in history[-1]["notes"].items() if note.endswith("spectrum"))
            rows += [
                {"run": name, "quantity": VALUE, "round": len(history), "dimension": place, "value": value / values[0]}
                for place, value in enumerate(values, 1)
            ]
    return rows


def draw(rows: Rows, look: Look) -> Figure:
    """Left the effective rank over rounds, right the last spectrum; a method has one colour, PLGC is dashed."""
    figure, (rank, spectrum) = panels(2, 4.8)
    methods = list(dict.fromkeys(str(row["run"]).split("+")[0] for row in rows))
    for name, lines in groups(rows, "run").items():
        method, _, plugin = name.partition("+")
        style: dict[str, Any] = {
            "color": look.colour(methods.index(method)),
            "linestyle": "--" if plugin else "-",
            "label": name,
        }
        for axes, x, quantity in ((rank, "round", RANK), (spectrum, "dimension", VALUE)):
            chosen = [row for row in lines if row["quantity"] == quantity]
            axes.plot(column(chosen, x), column(chosen, "value"), **style)
    label(rank, "round", "effective rank of the item table")
    low, high = rank.get_ylim()
    rank.set_ylim(low - 0.5 * (high - low), high)  # not from 0: the curves would lie on each other
    label(spectrum, "dimension", "singular value over the largest")
    spectrum.set_ylim(0, 1.02)
    legend(figure, rank, len(methods))
    return figure


def caption(rows: Rows) -> str:
    ends = {
        name: [float(row["value"]) for row in lines if row["quantity"] == RANK][-1]
        for name, lines in groups(rows, "run").items()
    }
    pairs = ", ".join(
        f"{name} {rank:.1f} without and {ends[f'{name}+plgc']:.1f} with"
        for name, rank in ends.items()
        if f"{name}+plgc" in ends
    )
    wide = max(int(row["dimension"]) for row in rows)
    return (
        f"Effective rank of the shared item table ({wide} dimensions) after the last round: {pairs} PLGC. A flat "
        "spectrum uses all dimensions, a steep one has collapsed. One run each, under `clean`."
    )


DIMENSIONS = Drawing(
    "dimensions",
    "PLGC, dimensional collapse",
    "effective rank over rounds and singular spectrum of the item table, with and without PLGC",
    data,
    draw,
    caption,
)
