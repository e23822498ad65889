"""How fast methods learn: over rounds, over seconds and over bytes."""

from __future__ import annotations

from itertools import accumulate

from matplotlib.figure import Figure

from federec.reproduction.drawings.base import Drawing, Request, Rows, column, groups, percent
from federec.reproduction.drawings.look import Look, label, legend, panels, styled
from federec.reproduction.drawings.training import trained

METHODS = ("fedmf", "fedncf", "pfedrec", "fedrap")
NEAR = 0.95
"""The fraction of its best HR@10 at which a method counts as nearly there."""


def data(request: Request) -> Rows:
    """HR@10 after each round, with the seconds and the bytes of a device so far. All runs are made by one engine, or
    their seconds could not be compared."""
    rows: Rows = []
    for method in METHODS:
        history = trained(request, method, engine="torch").history
        seconds = accumulate(line["seconds"]["train"] + line["seconds"]["evaluate"] for line in history)
        sent = accumulate(line["up_bytes"] + line["down_bytes"] for line in history)
        for line, spent, bytes_ in zip(history, seconds, sent, strict=True):
            hits = line["test"]["hr@10"]
            rows.append(
                {"method": method, "round": line["round"], "seconds": spent, "bytes": float(bytes_), "hr@10": hits}
            )
    return rows


def draw(rows: Rows, look: Look) -> Figure:
    """One panel for each of rounds, seconds and bytes; one curve for each method."""
    figure, axes = panels(3, 4.4, sharey=True)
    found = groups(rows, "method")
    looks = styled(look, list(found))
    scales = (("round", 1.0, "rounds"), ("seconds", 1.0, "seconds"), ("bytes", 1e-6, "MB per device"))
    for each, (name, scale, words) in zip(axes, scales, strict=True):
        for method, lines in found.items():
            values = [100 * value for value in column(lines, "hr@10")]
            each.plot([scale * value for value in column(lines, name)], values, **looks[method])
        label(each, words, "HR@10, percent" if each is axes[0] else "")
        each.set_ylim(bottom=0)
    for each in axes[1:]:
        each.set_xscale("log")
    legend(figure, axes[0], len(found))
    return figure


def caption(rows: Rows) -> str:
    words = []
    for method, lines in groups(rows, "method").items():
        best = max(column(lines, "hr@10"))
        near = next(row for row in lines if float(row["hr@10"]) >= NEAR * best)
        words.append(f"{method} {near['round']} ({float(near['bytes']) / 1e6:.1f} MB, best {percent(best)})")
    return (
        "HR@10 of the test items against 99 others under `clean`, over rounds, seconds (engine torch) and bytes that a "
        f"device sends and receives. The round in which a method has {NEAR:.0%} of its best value: {', '.join(words)}."
    )


CONVERGENCE = Drawing(
    "convergence",
    "FedRAP, Fig. 3 and 4",
    "HR@10 over rounds, seconds and bytes of a device for FedMF, FedNCF, PFedRec and FedRAP",
    data,
    draw,
    caption,
)
