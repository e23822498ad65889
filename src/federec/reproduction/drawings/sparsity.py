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
VARIANTS: dict[str, dict[str, Any]] = {"v2 = 0": {"v2": 0.0}, "v2 = 0.001 (default)": {}, "v2 = 1": {"v2": 1.0}}
"""Weights of the L1 term: without it, the paper's, and a large one."""


def data(request: Request) -> Rows:
    """After each round: fractions of the entries of C that are 0 or small, and the bytes of a device, with the paper's
    settings but for the weight of the L1 term."""
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
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    legend(figure, small, len(runs))
    return figure


def caption(rows: Rows) -> str:
    runs = groups(rows, "run")
    words = ", ".join(f"{percent(float(lines[-1][f'below {SMALL[1]:g}']))} with {name}" for name, lines in runs.items())
    zero = max(float(row["zero"]) for row in rows)
    exact = f"At most {percent(zero)} are exactly 0" if zero else "None is ever exactly 0"
    sent = column(rows, "up_bytes")
    return (
        f"Entries of C below {SMALL[1]:g} after the last round: {words}; C starts from N(0, 1), of which 0.8 % are. "
        f"{exact}. A device sends about {sum(sent) / len(sent) / 1e3:.0f} kB in every round: the changes of the rows "
        "that it touched, whatever C looks like."
    )


SPARSITY = Drawing(
    "sparsity",
    "FedRAP, the claim of a sparse C",
    "small entries of FedRAP's shared table and bytes of a device over rounds, by the weight of the L1 term",
    data,
    draw,
    caption,
)
