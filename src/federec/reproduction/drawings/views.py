"""The item rows that a PFedRec device ranks with: its own, the server's, or another device's."""

from __future__ import annotations

from matplotlib.figure import Figure

from federec.reproduction.drawings.base import Drawing, Request, Rows, groups
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
    """A panel for each metric and protocol; in it a group of bars for each data set."""
    figure, axes = panels(4, 3.6, 2, sharey="row")
    names = list(groups(rows, "data"))
    width = 0.8 / len(VIEWS)
    cases = [(metric, protocol) for metric in METRICS for protocol in groups(rows, "protocol")]
    for each, (metric, protocol) in zip(axes, cases, strict=True):
        for place, view in enumerate(VIEWS):
            values = [100 * float(r[metric]) for r in rows if (r["view"], r["protocol"]) == (view, protocol)]
            x = [group + (place - 1) * width for group in range(len(values))]
            each.bar(x, values, 0.9 * width, color=look.colour(place), label=VIEWS[view])
        each.set_xticks(range(len(names)), [name.replace("-", "-\n", 1) for name in names], fontsize=12)
        each.grid(False, axis="x")
        label(each, "data set", f"{METRICS[metric]}, percent" if each in axes[::2] else "", f"under {protocol}")
    legend(figure, axes[0], len(VIEWS))
    return figure


def caption(rows: Rows) -> str:
    changes = []
    for protocol, lines in groups(rows, "protocol").items():
        told = []
        for name, own in groups(lines, "data").items():
            values = {str(row["view"]): float(row["hr@10"]) for row in own}
            told.append(f"{100 * (values['own'] - values['global']):+.1f} on {name}")
        changes.append(f"under `{protocol}` by {', '.join(told)}")
    return (
        "PFedRec devices rank with the rows they tuned in the round (own), the server's (global), or those of another "
        "device (random), against 99 items. Its own rows change a device's HR@10, in points and against the server's "
        f"rows, {'; '.join(changes)}."
    )


ITEM_VIEWS = Drawing(
    "item-views",
    "PFedRec, Fig. 3",
    "PFedRec with own, global and random item rows at inference, under both protocols",
    data,
    draw,
    caption,
    sets=("ml-100k", "ml-1m", "lastfm-2k", "amazon-video"),
)
