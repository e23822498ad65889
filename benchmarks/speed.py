"""Seconds a round and peak memory of whole runs, each in a process of its own.

python benchmarks/speed.py [--rounds 10] [--data ml-100k ml-1m] [--method pfedrec fedmf] [--engine torch fused]
                           [--threads 1 2] [--cold] [--page]

With `--cold` each run of a kernel comes twice: first with nothing compiled yet, then with what that one left. Peak
memory is that of the process from its start to its end, imports, data and compilation included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import median

from page import bars, put, table

HEAD = ["run", "train, s", "evaluate, s", "a round, s", "compile, s", "whole run, s", "its CPU, s", "peak, MB"]


def measure(method: str, data: str, engine: str, threads: int, rounds: int, cache: str | None) -> list[str]:
    """Median seconds to train and to evaluate a round, and of both; those of compilation, and of the whole process; its
    CPU seconds; its peak MB. `cache`: the folder of compiled code, if not the usual one."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "federec", "train", method, "--data", data, "--protocol", "paper"]
        command += ["--engine", engine, "--rounds", str(rounds), "--out", str(out), "--quiet"]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)} | ({"NUMBA_CACHE_DIR": cache} if cache else {})
        began = time.perf_counter()
        running = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(running.pid, 0)
        whole = time.perf_counter() - began, used.ru_utime + used.ru_stime
        running.returncode = os.waitstatus_to_exitcode(status)
        if running.returncode:
            raise SystemExit(running.returncode)
        lines = [json.loads(line)["seconds"] for line in (out / "rounds.jsonl").read_text().splitlines()]
        compiling = json.loads((out / "result.json").read_text())["seconds"]["compile"]
    train, evaluate = (median(line[part] for line in lines) for part in ("train", "evaluate"))
    peak = used.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    round_, run = (train, evaluate, train + evaluate), (compiling, *whole)
    return [*(f"{figure:.3f}" for figure in round_), *(f"{figure:.1f}" for figure in run), f"{peak:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--data", nargs="+", default=["ml-100k", "ml-1m"])
    parser.add_argument("--method", nargs="+", default=["pfedrec"])
    parser.add_argument("--engine", nargs="+", default=["torch", "fused"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--cold", action="store_true", help="measure kernels that are not compiled yet, too")
    parser.add_argument("--page", action="store_true", help="write the section of docs/benchmarks.md")
    asked = parser.parse_args()
    line = "{:<46}" + " {:>12}" * (len(HEAD) - 1)
    print(line.format(*HEAD))
    rows = []
    for data, method, engine, threads in product(asked.data, asked.method, asked.engine, asked.threads):
        name = f"{method}, {data}, {engine}, {threads} thread{'s' * (threads > 1)}"
        with tempfile.TemporaryDirectory() as cache:
            cold = asked.cold and engine == "fused"
            for first in [True, False] if cold else [False]:
                figures = measure(method, data, engine, threads, asked.rounds, cache if cold else None)
                rows.append([f"{name}, first run" if first else name, *figures])
                print(line.format(*rows[-1]), flush=True)
    if asked.page:
        text = f"{asked.rounds} rounds, each with evaluation. A first run compiles its kernels.\n\n{table(HEAD, rows)}"
        drawn = {row[0]: {"seconds, whole run": float(row[5]), "peak, MB": float(row[7])} for row in rows}
        put("speed", "Whole runs: time and memory", f"{text}\n\n{bars('speed', 'seconds and MB', drawn)}")


if __name__ == "__main__":
    main()
