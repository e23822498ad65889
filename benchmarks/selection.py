"""What it costs to choose the round by full ranking: the CPU seconds of a round with `--select full.ndcg@10` over those
with `--select sampled.hr@10`.

    python benchmarks/selection.py --data ml-100k ml-1m --methods pfedrec fedmf fedncf fedrap

Both runs are played in turn, a few rounds at a time, so that whatever else the machine does meets both. A run of 100
rounds may rank all items only in every so many of them (`evaluation/selection.py`): then as many rounds are timed.
"""

from __future__ import annotations

import argparse
import time

import torch

import federec as fr
from federec.data.split import leave_one_out
from federec.evaluation.protocols import protocol
from federec.methods.base import DeviceMethod
from federec.plugins.registry import build
from federec.runtimes.simulation import DeviceTrainer, trainer

ROUNDS = 100
RANKINGS = ("sampled.hr@10", "full.ndcg@10")


def measure(data: fr.Interactions, name: str, engine: str, turns: int) -> str:
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
    users, every = runs[1].selection.schedule
    seconds = [[0.0] * turns for _ in runs]
    for turn in range(turns):
        for run, spent in zip(runs, seconds, strict=True):
            began = time.process_time()
            for number in range(every):
                run.play(2 + turn * every + number)
            spent[turn] = (time.process_time() - began) / every
    without, with_ = (sorted(spent)[turns // 2] for spent in seconds)
    added = f"{with_ / without - 1:+.0%}"
    return f"| {data.name} | {name} | {engine} | {users} of {data.n_users} | {every} | {without:.4f} | {added} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["ml-100k", "ml-1m", "lastfm-2k", "amazon-video"])
    parser.add_argument("--methods", nargs="+", default=["pfedrec", "fedmf", "fedncf", "fedrap", "fedrecgel"])
    parser.add_argument("--engines", nargs="+", default=["fused", "torch"])
    parser.add_argument("--turns", type=int, default=5, help="How often both runs are played; medians are printed.")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print("| data | method | engine | users ranked | every | CPU s a round | full ranking adds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in given.data:
        data = fr.load(name)
        for method in given.methods:
            for engine in given.engines:
                print(measure(data, method, engine, given.turns), flush=True)


if __name__ == "__main__":
    main()
