"""Whether federations end, time after time: `python benchmarks/endurance.py [--times 10]`.

Two federations at their default settings, ten rounds each: 200 one-user devices in one process, a tenth of them silent
in each round; and 30 nodes that are processes of their own, on loopback with TLS. Printed is how each of them ended,
how many rounds were lost and how many replies were refused or missed, and how long it took.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from secure import first

from federec.data.interactions import Interactions
from federec.data.sets import load
from federec.network.catalogue import Catalogue
from federec.network.device_folder import share_out
from federec.network.exchange import Exchange
from federec.network.settings import EVENTS, FederationSettings, prepare
from federec.runs.config import RunConfig
from federec.runtimes.flower.up import bring_up
from federec.runtimes.in_process import NONE, SILENT, Fault, federation

ROUNDS = 10


def prepared(path: Path, data: Interactions, nodes: int, **how: float) -> None:
    config = RunConfig.checked(method="pfedrec", data="tastes", rounds=ROUNDS, settings={"dim": 8})
    prepare(path, config, FederationSettings.checked(expected=nodes, **how), Catalogue.of(data))
    share_out(path, data, nodes)


def in_one_process(path: Path, turn: int) -> None:
    """200 devices, of which a tenth does not answer."""

    def faults(node: int, kind: str, round_: int) -> Fault:
        return SILENT if np.random.default_rng([turn, node, round_]).random() < 0.1 and kind == "train" else NONE

    prepared(path, first(200, load("tastes")), 200, grace=0.1)
    Exchange.poll = 0.01
    federation(path, faults)


def on_flower(path: Path, turn: int) -> None:
    """30 processes."""
    prepared(path, load("tastes"), 30)
    for _ in bring_up(path):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--times", type=int, default=10)
    given = parser.parse_args()
    for name, play in (("200 devices in one process", in_one_process), ("30 nodes on Flower", on_flower)):
        for turn in range(given.times):
            with tempfile.TemporaryDirectory() as scratch:
                path, began = Path(scratch) / "run", time.perf_counter()
                play(path, turn)
                events = Counter(json.loads(line)["event"] for line in (path / EVENTS).read_text().splitlines())
                rounds = json.loads((path / "result.json").read_text())["rounds"]
                counted = ", ".join(f"{events[event]} {event}" for event in ("lost", "rejected", "missing"))
                took = time.perf_counter() - began
                print(f"{name}, time {turn + 1}: {rounds} rounds, {counted}, {took:.0f} s", flush=True)


if __name__ == "__main__":
    main()
