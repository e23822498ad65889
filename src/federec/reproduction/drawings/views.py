"""The item rows that a PFedRec device ranks with: its own, the server's, or another device's."""

from __future__ import annotations

from matplotlib.figure import Figure

from federec.reproduction.drawings.base import Drawing, Request, Rows, groups, percent
from federec.reproduction.drawings.look import Look, label, legend, panels
from federec.reproduction.drawings.training import trained

VIEWS = {"own": "its own rows", "global": "the server's rows", "random": "another device's rows"}
METRICS = {"hr@10": "HR@10", "ndcg@10": "NDCG@10"}


def data(request: Request) -> Rows:
    """Test metrics of the best round by item view, under both protocols."""
    rows: Rows = []
    for protocol in ("paper", "clean"):
        views = trained(request, "pfedrec", protocol=protocol).result["views"]
        rows += [{"protocol": protocol, "view": view} | {m: views[view][m] for m in METRICS} for view in VIEWS]
    return rows


def draw(rows: Rows, look: Look) -> Figure:
    """A panel for each metric, a group of bars for each protocol, with the value on each bar."""
    figure, axes = panels(len(METRICS), 4.6)
    protocols = list(groups(rows, "protocol"))
    width = 0.8 / len(VIEWS)
    for each, (metric, words) in zip(axes, METRICS.items(), strict=True):
        for place, view in enumerate(VIEWS):
            values = [100 * float(row[metric]) for row in rows if row["view"] == view]
            x = [group + (place - 1) * width for group in range(len(values))]
            bars = each.bar(x, values, 0.9 * width, color=look.colour(place), label=view)
            each.bar_label(bars, fmt="%.1f", padding=2, fontsize=11)
        each.set_xticks(range(len(protocols)), protocols)
        each.grid(False, axis="x")
        label(each, "protocol", f"{words} against 99 items, percent")
        each.set_ylim(top=each.get_ylim()[1] * 1.05)
    legend(figure, axes[0], len(VIEWS))
    return figure


def caption(rows: Rows) -> str:
    sentences = []
    for protocol, lines in groups(rows, "protocol").items():
        values = {str(row["view"]): float(row["hr@10"]) for row in lines}
        best = max(values, key=lambda view: values[view])
        figures = ", ".join(f"{view} {percent(value)}" for view, value in values.items())
        sentences.append(f"Under `{protocol}` a device ranks best with {VIEWS[best]} (HR@10: {figures}).")
    return (
        "PFedRec devices rank with the rows they tuned in the round (own), the server's (global), or those of another "
        f"device (random). {' '.join(sentences)}"
    )


ITEM_VIEWS = Drawing(
    "item-views",
    "PFedRec, Fig. 3",
    "PFedRec with own, global and random item rows at inference, under both protocols",
    data,
    draw,
    caption,
)
