"""Seconds a round and peak memory, one CPU thread, each run in a process of its own.

python benchmarks/speed.py [--rounds 10] [--data ml-100k ml-1m] [--method pfedrec fedmf] [--engine torch fused]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from statistics import median


def measure(method: str, data: str, engine: str, rounds: int) -> tuple[float, float, float, float]:
    """Median seconds to train and to evaluate a round, seconds of the whole process a round, peak MB."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "federec", "train", method, "--data", data, "--protocol", "paper"]
        command += ["--engine", engine, "--rounds", str(rounds), "--out", str(out), "--quiet"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        lines = [json.loads(line)["seconds"] for line in (out / "rounds.jsonl").read_text().splitlines()]
        result = json.loads((out / "result.json").read_text())
    train, evaluate = (median(line[part] for line in lines) for part in ("train", "evaluate"))
    return train, evaluate, result["seconds"]["total"] / rounds, result["peak_rss_mb"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--data", nargs="+", default=["ml-100k", "ml-1m"])
    parser.add_argument("--method", nargs="+", default=["pfedrec"])
    parser.add_argument("--engine", nargs="+", default=["torch", "fused"])
    asked = parser.parse_args()
    heads = f"{'train s':>8} {'eval s':>8} {'s/round':>8} {'with end':>9} {'peak MB':>8}"
    print(f"{'method':<14} {'data':<14} {'engine':<7} {heads}")
    for data, method, engine in product(asked.data, asked.method, asked.engine):
        train, evaluate, whole, peak = measure(method, data, engine, asked.rounds)
        figures = f"{train:8.3f} {evaluate:8.3f} {train + evaluate:8.3f} {whole:9.3f} {peak:8.0f}"
        print(f"{method:<14} {data:<14} {engine:<7} {figures}", flush=True)


if __name__ == "__main__":
    main()
