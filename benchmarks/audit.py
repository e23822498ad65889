"""What a curious server learns from each method through each channel, and what the channel costs in accuracy.

    python benchmarks/audit.py --out audit.jsonl [--data ml-100k] [--rounds 20] [--only WORD] [--page]

Trains each method with each channel under `clean`, in one thread, and audits the run (`federec audit`). A run is one line
of the `--out` file, written when it ends; what the file has is not trained again. `--only` takes the runs whose label
has the word in it. With `--page` docs/audit.md is written from the file; `--rounds 0` only does that.
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
from page import DOCS, MEASURES, machine, table

import federec as fr
from federec.auditing.findings import LEAK
from federec.methods.presets import RUN_SETTINGS, presets

METHODS = ("pfedrec", "fedmf", "fedncf", "fedrap", "fedease")
EPSILON = 3.0
NARROW = 8
"""Width of item rows under distributed noise, which lies on every value that every device sends."""
FEW = 10
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
    noise = ("clip:quantile=0.5", "distributed-noise", "secure-sum")
    for method in METHODS:
        yield Plan(method, "in the clear")
        yield Plan(method, "secure sums", ("secure-sum",))
    for method in ("fedmf", "pfedrec"):
        yield Plan(method, "distributed noise, epsilon 3", noise, EPSILON, {"dim": NARROW}, FEW)
    for method in METHODS:
        clip = "clip" if method == "fedease" else "clip:quantile=0.5"
        yield Plan(method, "central noise, epsilon 3", (clip, "central-noise", "secure-sum"), EPSILON)
    for method in METHODS[:-1]:
        yield Plan(method, "Laplace noise 0.5 on messages", ("laplace:scale=0.5",))
    yield Plan("fedmf", "secure sums, half of the devices", ("secure-sum",), settings={"participation": 0.5})


def measured(plan: Plan, data: fr.Interactions, rounds: int) -> Line:
    """Train and audit one run."""
    known = presets(plan.method).get(f"{data.name}-clean", {}) | plan.settings
    of_run = {key: value for key, value in known.items() if key in RUN_SETTINGS and key != "rounds"}
    of_method = {key: value for key, value in known.items() if key not in RUN_SETTINGS}
    method = _built(plan.method, of_method)
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


def _built(name: str, settings: dict[str, Any]) -> fr.Method:
    from federec.plugins.registry import build

    return build(name, (), settings)


def lines(path: Path) -> list[Line]:
    """What the file has."""
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


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
