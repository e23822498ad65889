"""Loading a data frame against loading the same rows from a Parquet file: seconds and peak memory.

    python benchmarks/frames.py [--rows 25000000] [--repeat 3] [--page]

Each load is a process of its own, with the whole machine; the quickest of `--repeat` counts. A frame exists before it
is loaded, and its own memory counts: the peak of a frame's process is the frame and all that loading adds to it. The
process that reads the file also holds the frame that Polars makes of it, but only while it reads. So there are two
ratios: of the peaks as they are, and with the frame counted in both, as in a program that has the frame and loads the
file beside it.
With `--page` the section of docs/benchmarks.md is written too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from page import put, table

KINDS = ("parquet", "pandas", "polars", "pyarrow")
COLUMNS = ("user", "item", "rating", "timestamp")


class Cost(NamedTuple):
    """Of one load."""

    seconds: float
    cpu: float
    """Seconds of all cores, which a busy machine does not change much."""
    before_mb: float
    """In memory before loading: libraries, and the frame."""
    peak_mb: float


def write(folder: Path, rows: int) -> None:
    """Interactions with the skew of MovieLens 25M: a column a file, and all in one Parquet file."""
    import polars as pl

    random = np.random.default_rng(0)
    columns = {
        "user": random.integers(0, max(2, rows // 150), rows),
        "item": (random.power(0.3, rows) * max(2, rows // 400)).astype(np.int64),
        "rating": random.integers(1, 6, rows),
        "timestamp": random.integers(800_000_000, 1_600_000_000, rows),
    }
    for name, values in columns.items():
        np.save(folder / f"{name}.npy", values)
    pl.DataFrame(columns).write_parquet(folder / "rows.parquet")


def source(kind: str, folder: Path) -> Any:
    """What is given to `load`."""
    if kind == "parquet":
        return folder / "rows.parquet"
    columns = {name: np.load(folder / f"{name}.npy") for name in COLUMNS}
    if kind == "pandas":
        import pandas as pd

        return pd.DataFrame(columns, copy=False)
    if kind == "polars":
        import polars as pl

        return pl.DataFrame(columns)
    import pyarrow as pa

    return pa.table(columns)


def status(key: str) -> float:
    """A figure of this process in MB, as Linux counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def measure(kind: str, folder: Path) -> Cost:
    """Load once, in this process."""
    import polars as pl

    from federec.data.sets import load

    pl.Series([1]).unique()  # the library is awake
    given = source(kind, folder)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    began, used = time.perf_counter(), time.process_time()
    load(given)
    return Cost(time.perf_counter() - began, time.process_time() - used, before, status("VmHWM"))


def once(kind: str, folder: Path) -> Cost:
    """Load once, in a process of its own."""
    command = [sys.executable, __file__, "--measure", kind, "--folder", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Cost(*json.loads(done.stdout))


def best(costs: list[Cost]) -> Cost:
    """The least of each figure."""
    return Cost(*map(min, zip(*costs, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=25_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--measure", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        print(json.dumps(measure(asked.measure, asked.folder)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), asked.rows)
        turns = [[once(kind, Path(folder)) for kind in KINDS] for _ in range(asked.repeat)]
    costs = {kind: best(list(each)) for kind, each in zip(KINDS, zip(*turns, strict=True), strict=True)}
    file = costs["parquet"]
    lines = []
    for kind, cost in costs.items():
        frame = cost.before_mb - file.before_mb if kind != "parquet" else 0.0
        times = [
            f"{cost.seconds:.1f}",
            f"{cost.seconds / file.seconds:.2f}",
            f"{cost.cpu:.1f}",
            f"{cost.cpu / file.cpu:.2f}",
        ]
        memory = [f"{frame:,.0f}", f"{cost.peak_mb:,.0f}", f"{cost.peak_mb / file.peak_mb:.2f}"]
        lines.append([kind, *times, *memory, f"{cost.peak_mb / (file.peak_mb + frame):.2f}"])
    head = [
        "source",
        "seconds",
        "to the file's",
        "CPU seconds",
        "to the file's",
        "frame, MB",
        "peak, MB",
        "to the file's",
    ]
    head.append("with the frame in both")
    text = f"{asked.rows:,} rows of four 64-bit columns.\n\n{table(head, lines)}"
    print(text)
    if asked.page:
        put("frames", "Data frames", text)


if __name__ == "__main__":
    main()
