"""What privacy by noise costs: accuracy over epsilon, counted as a device's budget counts it."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from federec.federation.channel import Channel
from federec.network.policy import DELTA, epsilon, rho
from federec.reproduction.drawings.base import Drawing, Request, Row, Rows, column, percent
from federec.reproduction.drawings.look import Look, label, legend, panels
from federec.reproduction.drawings.training import trained
from federec.runtimes.run import Run
from federec.stages.registry import stage

METHOD, CONTROL = "fedmf", "popularity"
DIM = 8
"""A narrow item table: noise lies on every value that is sent."""
NORM = 300.0
"""Updates are clipped to this norm."""
NOISE = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Standard deviations of the noise on each value, over the norm."""
PROTECTIVE = 10
"""Up to about this epsilon a guarantee means something."""
METRICS = {"sampled hr@10": "HR@10 against 99 items, percent", "full ndcg@10": "NDCG@10 against all items, percent"}
CLIPPED = "clipped, without noise"


def data(request: Request) -> Rows:
    """Test metrics with each amount of noise, without noise, and of popularity. Epsilon is that of all messages of the
    run; it is 0 in rows that have none."""
    clip: dict[str, Any] = {"stage": "clip", "norm": NORM}
    rows: Rows = []
    for noise in NOISE:
        stages: tuple[dict[str, Any], ...] = (clip, {"stage": "dense"}, {"stage": "gaussian", "scale": noise * NORM})
        run = trained(request, METHOD, preset=False, channel=stages, dim=DIM)
        cost = rho(Channel(tuple(stage(each) for each in stages)))
        assert cost is not None
        rows.append(_row("noise", noise, epsilon(cost * run.result["rounds"]), run))
    rows.append(_row(CLIPPED, 0.0, 0.0, trained(request, METHOD, preset=False, channel=(clip,), dim=DIM)))
    rows.append(_row(CONTROL, 0.0, 0.0, trained(request, CONTROL)))
    return rows


def _row(name: str, noise: float, spent: float, run: Run) -> Row:
    found = {metric: run.test[metric.split()[0]][metric.split()[1]] for metric in METRICS}
    return {"run": name, "noise": noise, "epsilon": spent, "rounds": run.result["rounds"], **found}


def draw(rows: Rows, look: Look) -> Figure:
    """A panel for each metric: a curve over epsilon, and lines at what needs none."""
    figure, axes = panels(len(METRICS), 4.6)
    noisy = [row for row in rows if row["run"] == "noise"]
    for each, (metric, words) in zip(axes, METRICS.items(), strict=True):
        values = [100 * value for value in column(noisy, metric)]
        each.plot(column(noisy, "epsilon"), values, marker="o", color=look.colour(0), label=f"{METHOD} under noise")
        for place, (row, line) in enumerate(zip((r for r in rows if r["run"] != "noise"), ("--", ":"), strict=True)):
            name = f"{METHOD}, {CLIPPED}" if row["run"] == CLIPPED else str(row["run"])
            each.axhline(100 * float(row[metric]), color=look.colour(place + 1), linestyle=line, label=name)
        each.set_xscale("log")
        each.set_ylim(0, 1.15 * each.get_ylim()[1])
        label(each, "epsilon of a device after the run", words)
    legend(figure, axes[0], 3)
    return figure


def caption(rows: Rows) -> str:
    noisy = sorted((row for row in rows if row["run"] == "noise"), key=lambda row: float(row["epsilon"]))
    most, least = noisy[-1], noisy[0]
    known = {str(row["run"]): float(row["full ndcg@10"]) for row in rows}
    beaten = [row for row in noisy if float(row["full ndcg@10"]) > known[CONTROL]]
    enough = (
        f"{METHOD} is ahead of {CONTROL} ({percent(known[CONTROL])}) from epsilon {float(beaten[0]['epsilon']):,.0f} on"
        if beaten
        else f"{METHOD} is behind {CONTROL} ({percent(known[CONTROL])}) at every epsilon shown"
    )
    useful = [float(row["epsilon"]) for row in beaten]
    protection = (
        f" An epsilon is called protective below about {PROTECTIVE}: noise on single updates does not get there with a "
        "useful model, so the default of a federation is a secure sum."
        if min(useful, default=PROTECTIVE) >= PROTECTIVE
        else ""
    )
    return (
        f"The server reads every update of a device, clipped to norm {NORM:g} and under Gaussian noise on the whole "
        f"table, in {int(most['rounds'])} rounds; delta is {DELTA:g}. NDCG@10 against all items is "
        f"{percent(known[CLIPPED])} without noise, {percent(float(most['full ndcg@10']))} at epsilon "
        f"{float(most['epsilon']):,.0f} and {percent(float(least['full ndcg@10']))} at epsilon "
        f"{float(least['epsilon']):,.0f}; {enough}.{protection}"
    )


PRIVACY = Drawing(
    "privacy",
    "ours",
    "accuracy over epsilon, where a server reads updates under Gaussian noise",
    data,
    draw,
    caption,
    rounds=30,
)
