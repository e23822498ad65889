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
    sentences = []
    for protocol, lines in groups(rows, "protocol").items():
        best: dict[str, list[str]] = {}
        for name, own in groups(lines, "data").items():
            values = {str(row["view"]): float(row["hr@10"]) for row in own}
            first = max(values, key=lambda view: values[view])
            told = f"{name} ({', '.join(f'{view} {percent(value)}' for view, value in values.items())})"
            best.setdefault(VIEWS[first], []).append(told)
        found = "; ".join(f"with {view} on {', '.join(names)}" for view, names in best.items())
        sentences.append(f"Under `{protocol}` a device has the best HR@10 {found}.")
    return (
        "PFedRec devices rank with the rows they tuned in the round (own), the server's (global), or those of another "
        f"device (random), against 99 items. {' '.join(sentences)}"
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
