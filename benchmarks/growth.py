"""How a PFedRec round grows with the devices: seconds, peak memory, and the log-log slope of time against interactions.

    python benchmarks/growth.py [--devices 1000 10000 100000 1000000] [--folder growth] [--page]

Data is generated once into the folder (1.6 GB for a million devices) and used again. Each run is a process of its own,
on all cores; of its rounds the quickest counts, without the time to compile. With `--page` the section of
docs/benchmarks.md and its plot are written too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from page import put, save, table

EACH = 100
"""Interactions of a device."""


@dataclass(frozen=True)
class Size:
    """One run: so many devices, of which a share takes part in a round."""

    devices: int
    items: int
    participation: float

    @property
    def interactions(self) -> float:
        """That a round trains on."""
        return self.devices * EACH * self.participation


@dataclass(frozen=True)
class Cost:
    """Of a round in seconds, of the whole run in MB."""

    train: float
    evaluate: float
    peak_mb: float

    @property
    def seconds(self) -> float:
        return self.train + self.evaluate


def federec(*arguments: object) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": str(os.cpu_count())}
    command = [sys.executable, "-m", "federec", *map(str, arguments)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


def data(size: Size, folder: Path) -> Path:
    """The generated interactions."""
    path = folder / f"{size.devices}-{size.items}"
    if not path.exists():
        counts = ("--users", size.devices, "--items", size.items, "--interactions", size.devices * EACH)
        federec("data", "generate", *counts, "--out", path)
    return path


def measure(size: Size, path: Path, rounds: int, evaluate_users: int) -> Cost:
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        out = Path(scratch) / "run"
        how = ("--engine", "fused", "--participation", size.participation, "--evaluate-users", evaluate_users)
        federec("train", "pfedrec", "--data", path, *how, "--rounds", rounds, "--out", out, "--quiet")
        spent = [json.loads(line)["seconds"] for line in (out / "rounds.jsonl").read_text().splitlines()]
        peak = json.loads((out / "result.json").read_text())["peak_rss_mb"]
    best = min(spent, key=lambda parts: parts["train"] + parts["evaluate"])
    return Cost(best["train"], best["evaluate"], peak)


def slope(costs: dict[Size, Cost]) -> float:
    """Of log seconds over log interactions, by least squares."""
    interactions, seconds = zip(*((size.interactions, cost.seconds) for size, cost in costs.items()), strict=True)
    return float(np.polyfit(np.log(interactions), np.log(seconds), 1)[0])


def plot(costs: dict[Size, Cost]) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for participation in sorted({size.participation for size in costs}):
        line = {size.devices: cost.seconds for size, cost in costs.items() if size.participation == participation}
        axes.loglog(list(line), list(line.values()), "o-", label=f"{participation:.0%} take part")
    axes.set(xlabel="devices", ylabel="seconds a round")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    return save(figure, "growth", "seconds a round")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--participation", type=float, nargs="+", default=[0.01, 1.0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--evaluate-users", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("growth"))
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    costs: dict[Size, Cost] = {}
    rows = []
    for devices in asked.devices:
        for participation in asked.participation:
            size = Size(devices, asked.items, participation)
            cost = costs[size] = measure(size, data(size, asked.folder), asked.rounds, asked.evaluate_users)
            figures = f"{size.interactions:,.0f}", f"{cost.train:.3f}", f"{cost.evaluate:.3f}", f"{cost.peak_mb:,.0f}"
            rows.append([f"{devices:,}", f"{participation:.0%}", *figures])
            print(*rows[-1], flush=True)
    text = table(["devices", "take part", "interactions", "train, s", "evaluate, s", "peak MB"], rows)
    for participation in asked.participation:
        line = {size: cost for size, cost in costs.items() if size.participation == participation}
        if len(line) > 1:
            slope_ = f"slope of log seconds over log interactions {slope(line):.3f}"
            text += f"\n\n{participation:.0%} take part: {slope_}."
    print(f"\n{text}")
    if asked.page:
        title = f"A round of PFedRec, {asked.items:,} items, {EACH} interactions a device"
        put("growth", title, f"{text}\n\n{plot(costs)}")


if __name__ == "__main__":
    main()
