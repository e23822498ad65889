"""Strong scaling: the same run in 1, 2, ... processes under torchrun, one thread each, or in threads of one process.

    python benchmarks/scaling.py [--processes 1 2] [--data ml-1m] [--method pfedrec] [--engine fused] [--rounds 20]
                                 [--page]
    python benchmarks/scaling.py --threads 1 2 4 8 16 --method pfedrec fedrap fedncf fedrecgel

A round has its evaluation, and lasts as long as its slowest process. With more workers than idle cores the table says
little. With `--page` the section of docs/benchmarks.md is written too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from page import bars, put, table


def measure(asked: argparse.Namespace, method: str, workers: int) -> float:
    """Median seconds of a round, after the first, which loads kernels."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable]
        if not asked.threads:
            command += ["-m", "torch.distributed.run", "--nproc-per-node", str(workers), "--standalone"]
        command += ["-m", "federec", "train", method, "--data", asked.data, "--protocol", "paper"]
        command += ["--engine", asked.engine, "--rounds", str(asked.rounds), "--out", str(out), "--quiet"]
        environment = {**os.environ, "OMP_NUM_THREADS": str(workers) if asked.threads else "1"}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        lines = [json.loads(line)["seconds"] for line in (out / "rounds.jsonl").read_text().splitlines()]
    return median(sum(line.values()) for line in lines[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--threads", nargs="+", type=int, help="of one process, instead of several processes")
    parser.add_argument("--data", default="ml-1m")
    parser.add_argument("--method", nargs="+", default=["pfedrec"])
    parser.add_argument("--engine", default="fused")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    title = f"{', '.join(asked.method)} on {asked.data}, {asked.engine} engine, {os.cpu_count()} cores."
    rows: list[list[str]] = []
    drawn = {}
    for method in asked.method:
        first = 0.0
        for workers in asked.threads or asked.processes:
            seconds = measure(asked, method, workers)
            first = first or seconds * workers
            speed_up = first / seconds
            rows.append([method, str(workers), f"{seconds:.4f}", f"{speed_up:.2f}", f"{speed_up / workers:.0%}"])
            drawn[f"{method}, {workers}"] = {"": seconds}
            print(*rows[-1], flush=True)
    workers_are = "threads" if asked.threads else "processes"
    text = f"{title}\n\n{table(['method', workers_are, 's a round', 'speed-up', 'efficiency'], rows)}"
    print(f"\n{text}")
    if asked.page:
        name, where = ("scaling-threads", "in one process") if asked.threads else ("scaling", "under torchrun")
        put(name, f"Strong scaling {where}", f"{text}\n\n{bars(name, 'seconds a round', drawn)}")


if __name__ == "__main__":
    main()
