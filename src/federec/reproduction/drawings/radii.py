"""FedRecGEL's two radii: how far shared and private parameters are moved uphill."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from federec.reproduction.drawings.base import Drawing, Request, Rows, column, groups, percent
from federec.reproduction.drawings.look import MARKS, Look, label, legend, panels, styled
from federec.reproduction.drawings.training import trained

RADII = (0.0, 0.005, 0.02, 0.08, 0.32)
DEFAULT = 0.02
NAMES = {"rho_shared": "rho_co (shared)", "rho_private": "rho_ur (private)"}
METRICS = {"hr@10": "HR@10", "ndcg@10": "NDCG@10"}


def data(request: Request) -> Rows:
    """Test metrics against 99 items with one radius varied and the other at its default."""
    rows: Rows = []
    for name in NAMES:
        for radius in RADII:
            changed: dict[str, Any] = {name: radius}
            test = trained(request, "fedrecgel", **changed).test["sampled"]
            rows.append({"radius": name, "rho": radius, **{metric: test[metric] for metric in METRICS}})
    return rows


def draw(rows: Rows, look: Look) -> Figure:
    """A panel for each metric, a curve for each radius. The values of a radius are evenly spaced."""
    figure, axes = panels(len(METRICS), 4.4)
    found = groups(rows, "radius")
    looks = styled(look, list(found))
    for each, (metric, words) in zip(axes, METRICS.items(), strict=True):
        for place, (name, lines) in enumerate(found.items()):
            values = [100 * value for value in column(lines, metric)]
            each.plot(range(len(values)), values, **looks[name] | {"label": NAMES[name], "marker": MARKS[place]})
        each.set_xticks(range(len(RADII)), [f"{radius:g}" for radius in RADII])
        each.set_xlim(-0.4, len(RADII) - 0.6)
        each.set_ylim(0, 1.15 * each.get_ylim()[1])  # from 0, so that chance does not look like an effect
        label(each, f"radius; the other one is {DEFAULT}", f"{words}, percent")
    legend(figure, axes[0], len(found))
    return figure


def caption(rows: Rows) -> str:
    sentences = []
    for name, lines in groups(rows, "radius").items():
        best = max(lines, key=lambda row: float(row["hr@10"]))
        values = column(lines, "hr@10")
        sentences.append(
            f"With {NAMES[name]} from {min(column(lines, 'rho')):g} to {max(column(lines, 'rho')):g}, HR@10 against 99 "
            f"items lies between {percent(min(values))} and {percent(max(values))}; it is highest at "
            f"{float(best['rho']):g}."
        )
    return f"{' '.join(sentences)} One run for each point, under `clean`."


RADII_FIGURE = Drawing(
    "radii",
    "FedRecGEL, Fig. 2",
    "HR@10 and NDCG@10 over both radii of sharpness-aware minimisation",
    data,
    draw,
    caption,
    rounds=50,
)
