"""What a curious server learns from each method through each channel, and what the channel costs in accuracy.

    python benchmarks/audit.py --out audit.jsonl [--data ml-100k] [--rounds 20] [--only WORD] [--page]

Trains each method with each channel under `clean`, in one thread, and audits the run (`federec audit`). A run is one
line of the `--out` file, written when it ends; what the file has is not trained again. `--only` takes the runs whose
label has the word in it. With `--page` the tables of docs/audit.md are written from the file; `--rounds 0` only does
that.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from page import DOCS, MEASURES, machine, save, table

import federec as fr
from federec.auditing.epsilon import DELTA, expected_bound, gaussian_mu
from federec.auditing.findings import GUESS, LEAK
from federec.methods.presets import RUN_SETTINGS, presets
from federec.plugins.registry import build

METHODS = ("fedmf", "pfedrec", "fedease", "fedncf")
EPSILON = 3.0
NARROWED = ("pfedrec", "fedmf")
"""Methods that are also trained under distributed noise."""
NARROW = 8
"""Width of item rows under distributed noise, which lies on every value that every device sends."""
FEW = 5
"""Rounds under distributed noise."""
PAGE, BEGIN, END = DOCS / "audit.md", "<!-- audit -->", "<!-- end audit -->"
Line = dict[str, Any]


class Plan(NamedTuple):
    """A run: a method and a channel."""

    method: str
    channel: str
    """What it is called in the table."""
    stages: tuple[str, ...] = ()
    epsilon: float | None = None
    settings: dict[str, Any] = {}  # noqa: RUF012
    rounds: int | None = None

    @property
    def key(self) -> str:
        return f"{self.method}: {self.channel}"


def plans() -> Iterator[Plan]:
    """All runs, the most important ones first."""
    clip = "clip:norm=300"  # about the norm of an update with the default steps
    for method in METHODS:
        yield Plan(method, "in the clear")
        yield Plan(method, "secure sums", ("secure-sum",))
        if method in NARROWED:
            stages = (clip, "distributed-noise", "secure-sum")
            yield Plan(method, "distributed noise, epsilon 3", stages, EPSILON, {"dim": NARROW}, FEW)
        stages = ("clip" if method == "fedease" else clip, "central-noise", "secure-sum")
        yield Plan(method, "central noise, epsilon 3", stages, EPSILON)
    yield Plan("fedmf", "secure sums, half of the devices", ("secure-sum",), settings={"participation": 0.5})
    for method in METHODS[:2]:
        yield Plan(method, "Laplace noise 0.5 on messages", ("laplace:scale=0.5",))


def measured(plan: Plan, data: fr.Interactions, rounds: int) -> Line:
    """Train and audit one run."""
    known = presets(plan.method).get(f"{data.name}-clean", {}) | plan.settings
    of_run = {key: value for key, value in known.items() if key in RUN_SETTINGS and key != "rounds"}
    of_method = {key: value for key, value in known.items() if key not in RUN_SETTINGS}
    method = build(plan.method, (), of_method)
    began = time.perf_counter()
    run = fr.train(
        method, data, rounds=plan.rounds or rounds, channel=plan.stages, epsilon=plan.epsilon, progress=False, **of_run
    )
    trained = time.perf_counter()
    found = fr.audit(run)
    return {
        "key": plan.key,
        "method": plan.method,
        "label": plan.channel,
        "data": data.name,
        "rounds": run.result["rounds"],
        "test": run.test["full"]["ndcg@10"],
        "seconds": {"train": trained - began, "audit": time.perf_counter() - trained},
        "machine": machine(),
        "audit": json.loads(found.json()),
        "best": {"attack": found.best.attack, "sees": found.best.sees}
        | {name: list(value) for name, value in found.best.measured._asdict().items()},
    }


def lines(path: Path) -> list[Line]:
    """What the file has."""
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def verdicts(found: list[Line]) -> str:
    """One sentence for each channel, from the worst of its runs."""
    words = []
    for label in dict.fromkeys(line["label"] for line in found):
        here = [line for line in found if line["label"] == label]
        worst = max(here, key=lambda line: line["best"]["auc"][0])
        precision, recall, auc = (worst["best"][name][0] for name in ("precision", "recall", "auc"))
        if auc > LEAK:
            said = f"a server names items of a `{worst['method']}` user with precision {_figure(precision)} and recall "
            said += f"{_figure(recall)} (AUC {auc:.2f})"
        else:
            most = max(map(popular, here))
            said = f"no attack tells a user's items from those of other users (AUC {auc:.2f} at most; {most:.2f} among "
            said += "items of equal popularity)"
        shown = [line["audit"]["empirical"]["least"] for line in here if line["audit"]["empirical"]]
        if shown:
            figures = ", ".join(f"{value:.2f}" for value in shown)
            said += f"; of the promised epsilon {EPSILON:g} canaries show at least {figures}"
        several = ", ".join(f"`{line['method']}`" for line in here)
        words.append(f"* **{label[:1].upper()}{label[1:]}** ({several}): {said}.")
    return "\n".join(words)


def popular(line: Line) -> float:
    """The largest AUC of any attack against items of equal popularity."""
    attacks = line["audit"]["attacks"]
    return max(each["popular"] for each in attacks if each["attack"] != GUESS)


def _figure(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.2f}"


def cells(line: Line) -> list[str]:
    """A row of the table."""
    best, promised, empirical = line["best"], line["audit"]["promised"]["epsilon"], line["audit"]["empirical"]
    figures = *(_figure(best[name][0]) for name in ("precision", "recall", "auc")), _figure(popular(line))
    shown = ["-"] * 3
    if empirical:
        fit = empirical["fit"]
        shown = [
            f"{promised:.2f}",
            f"{empirical['least']:.2f}",
            f"{fit['mean']:.2f} ({fit['low']:.2f}-{fit['high']:.2f})",
        ]
    attack = f"{best['attack']}, {best['sees']}"
    seconds = f"{line['seconds']['audit']:.0f}"
    return [
        line["method"],
        line["label"],
        str(line["rounds"]),
        f"{100 * line['test']:.1f}",
        attack,
        *figures,
        *shown,
        seconds,
    ]


POINTS = (
    "*Each point is a run, and points may lie on each other. Left of the dotted line no attack counts as a leak; above "
    "is more accurate.*"
)
HEAD = [
    *("method", "channel", "rounds", "NDCG@10, %", "best attack", "precision", "recall", "AUC, mates", "AUC, popular"),
    *("epsilon promised", "at least", "fit (95 %)", "seconds"),
]


def possible(found: list[Line]) -> str:
    """What the bound can show at best, in words; nothing where there were no canaries."""
    sent = [line["audit"]["empirical"] for line in found if line["audit"]["empirical"]]
    if not sent:
        return ""
    most = max(sent, key=lambda each: each["canaries"])
    bound = expected_bound(most["canaries"], most["guesses"], gaussian_mu(EPSILON), DELTA)
    return (
        f"With {most['canaries']:,} canaries and {most['guesses']} guesses, the best attack on normal noise of epsilon "
        f"{EPSILON:g} is expected to show {bound:.2f} at least."
    )


def plot(found: list[Line]) -> str:
    """Leakage against accuracy: a colour for each method, a mark for each channel."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes = figure.subplots()
    labels, methods = (list(dict.fromkeys(line[key] for line in found)) for key in ("label", "method"))
    marks = dict(zip(labels, "osD^vPX", strict=False))
    for line in found:
        mark, colour = marks[line["label"]], f"C{methods.index(line['method'])}"
        axes.plot(line["best"]["auc"][0], 100 * line["test"], mark, color=colour, markersize=8, alpha=0.8)
    axes.axvline(LEAK, color="#57606a", linestyle=":")
    axes.set(xlabel="leakage: AUC of the best attack", ylabel="accuracy: NDCG@10 against all items, percent")
    axes.set(xlim=(0.48, 1.02))
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
    shapes = [
        Line2D([], [], marker="osD^vPX"[at], color="#57606a", linestyle="", label=name)
        for at, name in enumerate(labels)
    ]
    colours = [Line2D([], [], marker="o", color=f"C{at}", linestyle="", label=name) for at, name in enumerate(methods)]
    figure.legend(handles=[*shapes, *colours], loc="outside right upper", fontsize=8)
    return save(figure, "audit", "leakage of items against accuracy, by method and channel")


def write(found: list[Line]) -> None:
    """Put the tables into the page."""
    known = [line for plan in plans() for line in found if line["key"] == plan.key]
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    text = "\n\n".join(
        [
            f"{MEASURES}\n```bash\n{command}\n```",
            verdicts(known),
            plot(known),
            POINTS,
            table(HEAD, [cells(line) for line in known]),
            "AUC, mates: that of the best attack; AUC, popular: the largest of any attack. " + possible(known),
            f"Under distributed noise item rows have {NARROW} values, and {FEW} rounds are played; all else has the "
            "method's default settings. Seconds are of the audit, in one thread, on a busy machine.",
            f"Data: {known[0]['data']}, under `clean`, seed 0, 100 attacked users. Machine: {known[0]['machine']}.",
        ]
    )
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data = fr.load(asked.data)
    for plan in plans():
        done = {line["key"] for line in lines(asked.out)}
        if asked.rounds and plan.key not in done and asked.only in plan.key:
            line = measured(plan, data, asked.rounds)
            with asked.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(plan.key, round(line["test"], 4), *line["audit"]["verdicts"], flush=True)
    if asked.page:
        write(lines(asked.out))


if __name__ == "__main__":
    main()
