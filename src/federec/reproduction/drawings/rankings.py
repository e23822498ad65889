"""Methods side by side: two ways to rank, and what accuracy costs."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from federec.reproduction.drawings.base import Drawing, Request, Row, Rows, percent
from federec.reproduction.drawings.look import MARKS, Look, label, legend, panels
from federec.reproduction.drawings.training import trained

METHODS = ("fedmf", "fedncf", "fedrecon", "pfedrec", "fedrap", "fedease")
CONTROL = "popularity"


def measured(request: Request, method: str) -> Row:
    """What a run reached, in which round, and the bytes of a device up to that round."""
    run = trained(request, method)
    best = run.history[: run.result["best_round"]]
    sent = sum((line["up_bytes"] or 0) + (line["down_bytes"] or 0) for line in best)
    return {
        "method": method,
        "sampled hr@10": run.test["sampled"]["hr@10"],
        "full hr@10": run.test["full"]["hr@10"],
        "full ndcg@10": run.test["full"]["ndcg@10"],
        "rounds": len(best),
        "bytes": float(sent),
    }


def data(request: Request) -> Rows:
    """Federated methods and popularity."""
    return [measured(request, method) for method in (*METHODS, CONTROL)]


def bytes_data(request: Request) -> Rows:
    """Federated methods that learn over rounds."""
    return [measured(request, method) for method in METHODS]


def _points(axes: Axes, rows: Rows, look: Look, x: str, y: str, scales: tuple[float, float]) -> None:
    for place, row in enumerate(rows):
        style: dict[str, Any] = {"color": look.colour(place), "marker": MARKS[place], "label": row["method"]}
        axes.scatter([scales[0] * float(row[x])], [scales[1] * float(row[y])], 110, clip_on=False, **style)


def draw(rows: Rows, look: Look) -> Figure:
    """Each method's HR@10 against 99 items, and against all items."""
    figure, (axes,) = panels(1, 5.4)
    _points(axes, rows, look, "sampled hr@10", "full hr@10", (100, 100))
    label(axes, "HR@10 against 99 sampled items, percent", "HR@10 against all items, percent")
    legend(figure, axes, 4)
    return figure


def bytes_draw(rows: Rows, look: Look) -> Figure:
    """NDCG@10 against all items over the bytes of a device and over the rounds that led to it."""
    figure, (sent, rounds) = panels(2, 4.8, sharey=True)
    _points(sent, rows, look, "bytes", "full ndcg@10", (1e-6, 100))
    _points(rounds, rows, look, "rounds", "full ndcg@10", (1, 100))
    label(sent, "MB per device up to the best round", "NDCG@10 against all items, percent")
    label(rounds, "rounds up to the best one", "")
    for axes in (sent, rounds):
        axes.set_xlim(0, 1.08 * axes.get_xlim()[1])
    sent.set_ylim(0, 1.08 * sent.get_ylim()[1])
    legend(figure, sent, 3)
    return figure


def _order(rows: Rows, metric: str) -> list[str]:
    return [str(row["method"]) for row in sorted(rows, key=lambda row: -float(row[metric]))]


def caption(rows: Rows) -> str:
    sampled, full = _order(rows, "sampled hr@10"), _order(rows, "full hr@10")
    pairs = [(a, b) for place, a in enumerate(sampled) for b in sampled[place + 1 :]]
    swapped = [pair for pair in pairs if full.index(pair[0]) > full.index(pair[1])]
    words = "; ".join(f"{a} before {b} only against 99" for a, b in swapped)
    agree = f"{len(swapped)} of {len(pairs)} pairs of methods change places" + (f": {words}." if words else ".")
    return f"The same runs ranked against 99 sampled items and against all items, under `clean`. {agree}"


def bytes_caption(rows: Rows) -> str:
    best = max(rows, key=lambda row: float(row["full ndcg@10"]))
    least = min(rows, key=lambda row: float(row["bytes"]))
    cheapest = (
        "No other method costs less."
        if best is least
        else f"{least['method']} costs least ({float(least['bytes']) / 1e6:.2f} MB) and reaches "
        f"{percent(float(least['full ndcg@10']))}."
    )
    return (
        f"The best round of {best['method']} has the highest NDCG@10 against all items ("
        f"{percent(float(best['full ndcg@10']))}) and costs a device {float(best['bytes']) / 1e6:.2f} MB in "
        f"{best['rounds']} {'round' if best['rounds'] == 1 else 'rounds'}. {cheapest}"
    )


RANKINGS = Drawing(
    "rankings", "ours", "HR@10 against 99 sampled items and against all items, by method", data, draw, caption
)
BYTES = Drawing(
    "bytes", "ours", "accuracy against bytes of a device and rounds, by method", bytes_data, bytes_draw, bytes_caption
)
