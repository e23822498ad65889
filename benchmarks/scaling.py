"""Strong scaling: the same run in 1, 2, ... processes under torchrun, one thread each.

    python benchmarks/scaling.py [--processes 1 2] [--data ml-1m] [--method pfedrec] [--engine fused] [--rounds 20]
                                 [--page]

A round lasts as long as its slowest process. With more processes than idle cores the table says little.
With `--page` the section of docs/benchmarks.md is written too.
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


def measure(asked: argparse.Namespace, processes: int) -> float:
    """Median seconds of a round, after the first, which loads kernels."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--standalone"]
        command += ["-m", "federec", "train", asked.method, "--data", asked.data, "--protocol", "paper"]
        command += ["--engine", asked.engine, "--rounds", str(asked.rounds), "--out", str(out), "--quiet"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        lines = [json.loads(line)["seconds"] for line in (out / "rounds.jsonl").read_text().splitlines()]
    return median(sum(line.values()) for line in lines[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--data", default="ml-1m")
    parser.add_argument("--method", default="pfedrec")
    parser.add_argument("--engine", default="fused")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    title = f"{asked.method} on {asked.data}, {asked.engine} engine, {os.cpu_count()} cores."
    first, rows, drawn = 0.0, [], {}
    for processes in asked.processes:
        seconds = measure(asked, processes)
        first = first or seconds * processes
        speed_up = first / seconds
        rows.append([str(processes), f"{seconds:.4f}", f"{speed_up:.2f}", f"{speed_up / processes:.0%}"])
        drawn[f"{processes} processes" if processes > 1 else "1 process"] = {"": seconds}
        print(*rows[-1], flush=True)
    text = f"{title}\n\n{table(['processes', 's a round', 'speed-up', 'efficiency'], rows)}"
    print(f"\n{text}")
    if asked.page:
        put("scaling", "Strong scaling under torchrun", f"{text}\n\n{bars('scaling', 'seconds a round', drawn)}")


if __name__ == "__main__":
    main()
