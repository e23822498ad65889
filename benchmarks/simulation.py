"""Federec's own simulation against Flower's: `python benchmarks/simulation.py [--data ml-100k] [--page]`.

PFedRec rounds with evaluation, all users taking part, one thread: in Flower's simulation engine, whose one worker runs
the ClientApp of a real federation on a hundred virtual nodes that share the users (device folders, messages and guards
included), and in this process with either engine. CPU seconds are those of all processes; the first rounds, in which
Ray starts and kernels are loaded, do not count. Needs `pip install 'federec[flower]' 'flwr[simulation]'`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from page import bars, put, table

from federation import ends, spent
from federec.data.split import leave_one_out
from federec.evaluation.protocols import protocol
from federec.network.catalogue import Catalogue
from federec.network.device_folder import share_out
from federec.network.settings import FederationSettings
from federec.runs.config import RunConfig
from federec.runtimes.flower.app import prepare
from federec.runtimes.flower.up import Federation
from federec.runtimes.simulation import trainer

NODES, ROUNDS = 100, 4


def in_flower(config: RunConfig, out: Path) -> float:
    """CPU seconds of a round in Flower's simulation engine."""
    data = config.load()
    prepare(out, config, FederationSettings.checked(expected=NODES, deadline=600.0), Catalogue.of(data))
    share_out(out, data, NODES)
    with Federation(out) as federation:
        federation.warm_up()
        federation.superlink(simulation=True)
        engine = f"num-supernodes={NODES} client-resources-num-cpus=1 init-args-num-cpus=1"
        federation.run(out, "--federation-config", engine)
        federation.wait(lambda: len(ends(out)) > 0, 600, "superlink")
        before = spent(federation)
        federation.wait(lambda: len(ends(out)) > ROUNDS, 600, "superlink")
        return (spent(federation) - before) / ROUNDS


def here(config: RunConfig, engine: str) -> float:
    """The same of an engine in this process."""
    split = leave_one_out(config.load(), config.seed)
    worker = trainer(config.build(), split, protocol(config.protocol), config.seed, 1.0, "cpu", engine)
    seconds = []
    for round_ in range(1, ROUNDS + 2):
        began = time.process_time()
        worker.play(round_)
        seconds.append(time.process_time() - began)
    return median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    config = RunConfig.checked(method="pfedrec", data=asked.data, protocol="paper", rounds=ROUNDS + 1)
    users = config.load().n_users
    with tempfile.TemporaryDirectory() as scratch:
        took = {f"Flower's simulation, {NODES} nodes": in_flower(config, Path(scratch) / "run")}
    took |= {f"federec, {engine} engine": here(config, engine) for engine in ("torch", "fused")}
    slowest = next(iter(took.values()))
    rows = [[name, f"{s:.3f}", f"{1000 * s / users:.3f}", f"{slowest / s:.0f}x"] for name, s in took.items()]
    head = [f"pfedrec, {asked.data}, {users:,} users", "CPU s a round", "CPU ms a user", "as fast"]
    text = table(head, rows)
    print(text)
    if asked.page:
        drawn = bars("simulation", "CPU seconds a round", {name: {"": seconds} for name, seconds in took.items()})
        put("simulation", "Against Flower's simulation", f"{text}\n\n{drawn}")


if __name__ == "__main__":
    main()
