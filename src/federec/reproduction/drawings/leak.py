"""The leak: a control that learns nothing, under both protocols."""

from __future__ import annotations

from matplotlib.figure import Figure

from federec.reproduction.drawings.base import Drawing, Request, Rows, column, groups, percent
from federec.reproduction.drawings.look import Look, label, panels, styled
from federec.reproduction.drawings.training import trained

CHANCE = 0.1
"""HR@10 of a random order of 100 candidates."""


def data(request: Request) -> Rows:
    """HR@10 of the control after each round, under `paper` and under `clean`."""
    rows: Rows = []
    for protocol in ("paper", "clean"):
        history = trained(request, "negative-count", protocol=protocol).history
        rows += [{"protocol": protocol, "round": line["round"], "hr@10": line["test"]["hr@10"]} for line in history]
    return rows


def draw(rows: Rows, look: Look) -> Figure:
    """One curve for each protocol, named at its end."""
    figure, (axes,) = panels(1, 4.6)
    found = groups(rows, "protocol")
    looks = styled(look, list(found))
    last = max(column(rows, "round"))
    for protocol, lines in found.items():
        values = [100 * value for value in column(lines, "hr@10")]
        axes.plot(column(lines, "round"), values, **looks[protocol])
        end, colour = (last, values[-1]), looks[protocol]["color"]
        axes.annotate(protocol, end, (8, 0), textcoords="offset points", va="center", color=colour)
    axes.plot([0, last], [100 * CHANCE] * 2, color=look.ink, linewidth=1.2, linestyle=":")
    axes.annotate("random order", (last, 100 * CHANCE + 1), ha="right", va="bottom", color=look.ink)
    axes.set_xlim(0, last * 1.1)
    axes.set_ylim(0, 102)
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= last])
    label(axes, "round", "HR@10 against 99 items, percent")
    return figure


def caption(rows: Rows) -> str:
    ends = {protocol: column(lines, "hr@10")[-1] for protocol, lines in groups(rows, "protocol").items()}
    rounds = max(column(rows, "round"))
    return (
        "The control only counts how often each item was drawn as a negative, so it knows nothing of the user's taste. "
        f"Under `paper`, where the held-out item is never drawn, its HR@10 is {percent(ends['paper'])} after "
        f"{rounds:.0f} rounds; under `clean` it is {percent(ends['clean'])}. A random order has {percent(CHANCE)}, and "
        "a tie counts against the held-out item. The difference between the curves is the leak."
    )


LEAK = Drawing(
    "leak",
    "ours",
    "what a score that learns nothing reaches under the leaky protocol, over rounds",
    data,
    draw,
    caption,
)
