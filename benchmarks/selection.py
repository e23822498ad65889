"""What it costs to choose the round by full ranking: how much longer a run of 100 rounds takes with
`--select full.ndcg@10` than with `--select sampled.hr@10`, in CPU seconds.

    python benchmarks/selection.py [--data ml-100k ml-1m] [--methods pfedrec fedmf fedrap] [--page]

All items are ranked only in some rounds (`evaluation/selection.py`). The same round is played with and without that
ranking, in turn, so that whatever else the machine does meets both; the median of what it adds, times the number of
rounds that are ranked, is compared with the median round. With `--page` the section of docs/benchmarks.md is written.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch
from page import put, table

import federec as fr
from federec.data.split import leave_one_out
from federec.evaluation.protocols import protocol
from federec.methods.base import DeviceMethod
from federec.plugins.registry import build
from federec.runtimes.simulation import DeviceTrainer, trainer

ROUNDS = 100
RANKINGS = ("sampled.hr@10", "full.ndcg@10")


def measure(data: fr.Interactions, name: str, engine: str, turns: int) -> list[str]:
    """A line of the table."""
    method, split = build(name), leave_one_out(data)
    assert isinstance(method, DeviceMethod)
    runs: list[DeviceTrainer] = []
    for select in RANKINGS:
        run = trainer(
            method, split, protocol("clean"), 0, method.default_participation,
            engine=engine, rounds=ROUNDS, select=select,  # type: ignore[arg-type]
        )  # fmt: skip
        assert isinstance(run, DeviceTrainer)
        run.play(1)  # compiles
        runs.append(run)
    selection = runs[1].selection
    ranked = [number for number in range(1, ROUNDS + 1) if selection.due(number)]
    seconds: list[list[float]] = [[], []]
    for number in range(turns):
        for run, spent in zip(runs, seconds, strict=True):
            began = time.process_time()
            run.play(ranked[min(1 + number, len(ranked) - 1)])
            spent.append(time.process_time() - began)
    plain = median(seconds[0])
    added = median(with_ - without for without, with_ in zip(*seconds, strict=True))
    users = f"{selection.schedule.users:,} of {len(selection.evaluator.users):,}"
    share = f"{added * len(ranked) / (plain * ROUNDS):+.0%}"
    return [data.name, name, engine, users, str(len(ranked)), f"{plain:.3f}", share]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["ml-100k", "ml-1m", "lastfm-2k", "amazon-video"])
    parser.add_argument("--methods", nargs="+", default=["pfedrec", "fedmf", "fedncf", "fedrap", "fedrecgel"])
    parser.add_argument("--engines", nargs="+", default=["fused", "torch"])
    parser.add_argument("--turns", type=int, default=7, help="How many rounds are played with both; medians count.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    lines = []
    for name in given.data:
        data = fr.load(name)
        for method in given.methods:
            for engine in given.engines:
                lines.append(measure(data, method, engine, given.turns))
                print(" ".join(lines[-1]), flush=True)
    head = ["data", "method", "engine", "users ranked", "rounds ranked of 100", "CPU s a round", "full ranking adds"]
    text = table(head, lines)
    print(text)
    if given.page:
        put("selection", "Choosing the round by full ranking", text)


if __name__ == "__main__":
    main()
