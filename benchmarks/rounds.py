"""CPU seconds of a round of every method, alone and with each plug-in that fits it: one thread, default settings.

python benchmarks/rounds.py [--data ml-100k] [--method fedrap] [--with none plgc] [--engine auto] [--rounds 4] [--page]

A round is drawing, learning and evaluation, by the engine that a run of default length takes. Its seconds are those of
the process, so that a busy machine matters little. The first round, which waits for compiled code, counts only where
there is no other. A method whose rounds ask some of the devices is measured with all of them too. Each combination is
played in a process of its own. Of those that take longer than `LONG`, a second table says how long their products of
matrices alone would take, at the best that this machine can do: those of a round in torch, as torch counts them. A
kernel can go below that where samples share products.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any, TypeVar

import torch
from floor import arithmetic
from page import bars, put, table
from torch.utils.flop_counter import FlopCounterMode

from federec.data.split import leave_one_out
from federec.errors import UserError
from federec.methods.registry import METHODS
from federec.plugins.registry import PLUGINS, build
from federec.runs.config import RunConfig
from federec.runtimes.simulation import make_trainer

T = TypeVar("T")
HEAD = ["combination", "devices", "engine", "s a round", "slowest"]
LONG = 0.7
"""Seconds that a round should not take."""


def combinations(methods: list[str], plugins: list[str]) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Methods with the plug-ins that fit them, and the shares of devices to measure them with."""
    for name in methods:
        for plugin in plugins:
            chosen = () if plugin == "none" else (plugin,)
            try:
                method = build(name, chosen)
            except UserError:  # it does not fit
                continue
            for share in sorted({method.default_participation, 1.0}):
                yield name, chosen, share


def play(config: RunConfig, rounds: int) -> tuple[str, list[float]]:
    """The engine of a run, and the CPU seconds of its first rounds."""
    torch.set_num_threads(1)
    worker, spent = make_trainer(config, config.build(), leave_one_out(config.load(), config.seed), "cpu"), []
    for round_ in range(1, min(rounds, config.rounds or rounds) + 1):
        began = time.process_time()
        worker.play(round_)
        spent.append(time.process_time() - began)
    return worker.engine_choice.used, spent[1:] or spent


def products(config: RunConfig) -> int:
    """Operations in products of matrices of a round in torch, its second."""
    split = leave_one_out(config.load(), config.seed)
    worker = make_trainer(config.model_copy(update={"engine": "torch"}), config.build(), split, "cpu")
    worker.play(1)
    with FlopCounterMode(display=False) as counted:
        worker.play(2)
    return int(counted.get_total_flops())


def alone(work: Callable[..., T], *values: Any) -> T:
    """What `work` gives back in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(work, *values).result()


def at_best(configs: dict[str, tuple[RunConfig, float]]) -> str:
    """A table of these combinations and their seconds: how long their products alone would take."""
    speed, rows = arithmetic(), []
    for label, (config, seconds) in configs.items():
        count = alone(products, config)
        rows.append([label, f"{seconds:.3f}", f"{count / 1e9:.1f}", f"{count / speed:.3f}"])
        print("{:<30} {:>8} s, products: {:>6} GFLOP, {:>8} s".format(*rows[-1]), flush=True)
    head = ["combination", "s a round", "products, GFLOP", "products at best, s"]
    return (
        f"Over {LONG} s, and how long their products of matrices would take at the best of this machine, "
        f"{speed / 1e9:.0f} GFLOP/s:\n\n{table(head, rows)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--method", nargs="+", default=[*METHODS], choices=METHODS)
    parser.add_argument("--with", nargs="+", dest="plugins", default=["none", *PLUGINS], choices=["none", *PLUGINS])
    parser.add_argument("--engine", default="auto", choices=["auto", "torch"])
    parser.add_argument("--rounds", type=int, default=4, help="of each run; all but the first are measured")
    parser.add_argument("--page", action="store_true", help="write the section of docs/benchmarks.md")
    asked = parser.parse_args()
    rows, long = [], {}
    for name, plugins, share in combinations(asked.method, asked.plugins):
        config = RunConfig.checked(
            method=name, plugins=plugins, data=asked.data, participation=share, engine=asked.engine
        )
        label = "+".join((name, *plugins))
        try:
            engine, spent = alone(play, config, asked.rounds)
        except UserError as error:
            print(f"{label:<24} {error}", flush=True)
            continue
        rows.append([label, f"{share:.0%}", engine, f"{median(spent):.3f}", f"{max(spent):.3f}"])
        if median(spent) > LONG:
            long[f"{label}, {share:.0%}"] = config, median(spent)
        print("{:<24} {:>5}  {:<6} {:>8} {:>8}".format(*rows[-1]), flush=True)
    slowest = max(rows, key=lambda row: float(row[-1]))
    told = f"The slowest round of all: {slowest[0]}, {slowest[-1]} s."
    print(told)
    told += f"\n\n{at_best(long)}" if long else ""
    if asked.page:
        drawn = bars("rounds", "CPU seconds a round", {f"{row[0]}, {row[1]}": {"": float(row[3])} for row in rows})
        text = f"{table(HEAD, rows)}\n\nCPU seconds. {told}\n\n{drawn}"
        put("rounds", f"A round of each method on {asked.data}", text)


if __name__ == "__main__":
    main()
