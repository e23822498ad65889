"""How long a first run waits for the compilation of kernels: the commands that a newcomer meets, with cold caches.

    python benchmarks/first.py [--threads 2] [--page]

Each command runs three times: the first time on a machine, again, and with `--engine torch`. A first run may wait for
compilation only if that makes it shorter than a run in torch. Whole runs are CPU seconds, with imports and data. With
`--page` the section of docs/benchmarks.md is written too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from page import put, table

COMMANDS = [
    "--data tastes",  # make demo
    "negative-count --data tastes --rounds 40 --protocol paper",
    "fedmf --data tastes --rounds 5",
    "pfedrec --data tastes --rounds 20",
    "pfedrec --data tastes",
    "fedmf --data tastes",
    "fedncf --data tastes",
    "--data ml-100k",
    "pfedrec --data ml-100k --rounds 20",
    "pfedrec --data ml-100k",
    "fedncf --data ml-100k --rounds 20",
    "fedrap --data ml-100k --rounds 20",
]
HEAD = ["federec train", "engine", "waits for compilation, s", "first run, CPU s", "again, CPU s", "in torch, CPU s"]


class Cost(NamedTuple):
    """Of a whole run."""

    engine: str
    compiling: float
    """Seconds that its first round waited for kernels."""
    cpu: float
    """Seconds of all its threads."""


def measure(words: list[str], cache: str, threads: int) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "federec", "train", *words, "--out", str(out), "--quiet"]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "NUMBA_CACHE_DIR": cache}
        running = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
        if running.returncode:
            raise SystemExit(f"{' '.join(words)}: ended with {running.returncode}")
        result = json.loads((out / "result.json").read_text())
    return Cost(result["engine"]["used"], result["seconds"]["compile"], used.ru_utime + used.ru_stime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="+", default=range(len(COMMANDS)), help="numbers of commands")
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    rows = []
    for text in (COMMANDS[number] for number in asked.only):
        with tempfile.TemporaryDirectory() as cache:
            first, again = (measure(text.split(), cache, asked.threads) for _ in range(2))
            torch = measure([*text.split(), "--engine", "torch"], cache, asked.threads) if first.compiling else None
        figures = [
            f"{first.compiling:.1f}",
            f"{first.cpu:.1f}",
            f"{again.cpu:.1f}",
            f"{torch.cpu:.1f}" if torch else "",
        ]
        rows.append([f"`{text}`", first.engine, *figures])
        print(*rows[-1], sep="  ", flush=True)
    if asked.page:
        put("first", "First runs", f"Nothing is compiled before the first run.\n\n{table(HEAD, rows)}")


if __name__ == "__main__":
    main()
