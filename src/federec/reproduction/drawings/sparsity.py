"""FedRAP's shared table C: how sparse it gets, and what a device sends."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from federec.reproduction.drawings.base import Drawing, Request, Rows, column, groups, percent
from federec.reproduction.drawings.look import Look, label, legend, panels, styled
from federec.reproduction.drawings.training import configured
from federec.runtimes.simulation import make_trainer

SMALL = (1e-3, 1e-2, 1e-1)
"""Entries below these count as zero: plain SGD on |c| hardly ever hits 0 itself."""
VARIANTS: dict[str, dict[str, Any]] = {"with the L1 term": {}, "without the L1 term": {"v2": 0.0}}


def data(request: Request) -> Rows:
    """After each round: fractions of the entries of C that are 0 or small, and the bytes of a device, with the paper's
    settings and without the L1 term."""
    rows: Rows = []
    for name, settings in VARIANTS.items():
        config = configured(request, "fedrap", preset=False, **settings)
        method, loaded = config.build(), config.load()
        trainer = make_trainer(config, method, config.split_of(loaded), "cpu")
        request.say(f"train  fedrap on {config.data}, {name}, {config.rounds} rounds")
        for number in range(1, request.rounds + 1):
            played = trainer.play(number)
            size = trainer.state.shared["common"].abs()
            small = {f"below {bound:g}": float((size < bound).float().mean()) for bound in SMALL}
            zero = float((size == 0).float().mean())
            rows.append({"run": name, "round": number, "zero": zero, **small, "up_bytes": float(played.up_bytes or 0)})
    return rows


def draw(rows: Rows, look: Look) -> Figure:
    """Left the fraction of small entries, right the bytes that a device sends in a round."""
    figure, (small, sent) = panels(2, 4.6)
    runs = groups(rows, "run")
    looks = styled(look, list(runs))
    for name, lines in runs.items():
        rounds = column(lines, "round")
        small.plot(rounds, [100 * value for value in column(lines, f"below {SMALL[1]:g}")], **looks[name])
        sent.plot(rounds, [value / 1e3 for value in column(lines, "up_bytes")], **looks[name])
    label(small, "round", f"entries of C below {SMALL[1]:g}, percent")
    label(sent, "round", "sent by a device in a round, kB")
    for axes in (small, sent):
        axes.set_ylim(bottom=0)
    legend(figure, small, len(runs))
    return figure


def caption(rows: Rows) -> str:
    ends = {name: lines[-1] for name, lines in groups(rows, "run").items()}
    words = " and ".join(f"{percent(float(row[f'below {SMALL[1]:g}']))} {name}" for name, row in ends.items())
    zero = max(float(row["zero"]) for row in ends.values())
    first, last = (float(next(iter(groups(rows, "run").values()))[place]["up_bytes"]) for place in (0, -1))
    return (
        f"After the last round {words} of the entries of C are below {SMALL[1]:g}, but at most {percent(zero)} are "
        f"exactly 0. A device sends {first / 1e3:.0f} kB in the first round and {last / 1e3:.0f} kB in the last: it "
        "sends the changes of the rows that it touched, and these are as many in every round."
    )


SPARSITY = Drawing(
    "sparsity",
    "FedRAP, the claim of a sparse C",
    "small entries of FedRAP's shared table and bytes of a device over rounds, with and without the L1 term",
    data,
    draw,
    caption,
)
