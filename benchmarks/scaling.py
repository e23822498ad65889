"""Strong scaling: the same rounds in 1, 2, ... threads of one process, or in so many processes under torchrun.

    python benchmarks/scaling.py --threads [1 2 4 8 16] [--method pfedrec fedrap fedncf fedrecgel] [--rounds 6] [--page]
    python benchmarks/scaling.py [--processes 1 2] [--data ml-1m] [--method pfedrec] [--engine fused] [--rounds 20]
                                 [--page]
    python benchmarks/scaling.py --mbit 100 [--participation 0.01 0.1 1] [--page]

Without numbers, `--threads` are 1, 2, 4, ... up to the number of cores. A round has its evaluation; seconds are the
median of rounds, which are the same ones for every number of threads. Each round of fewer threads than cores has other
cores: on a rented machine half of them may be slower by half, and one thread would have a good one or a bad one by
chance. The rows `arithmetic` show what the machine itself gives to more threads: multiplications and additions that
never leave the first cache (`floor.py`). A round under torchrun lasts as long as its
slowest process, which has one thread. With more workers than idle cores the table says little. With `--mbit` two
machines with a line of that speed between them train 10,000 devices on 100,000 items: two network namespaces, which
needs root. With `--page` the section of docs/benchmarks.md is written too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median

import torch
from floor import some_arithmetic
from machines import two_machines
from page import bars, put, table
from safetensors.numpy import load_file

from federec.data.split import leave_one_out
from federec.runs.config import RunConfig
from federec.runtimes.simulation import make_trainer

METHODS = ["pfedrec", "fedrap", "fedncf", "fedrecgel"]
ITSELF = "arithmetic"
"""No method: what the machine itself gives to more threads."""
PINNED = """With fewer threads than cores the whole process has only that many cores. Libraries that start a thread for
each core of the machine then take a part of them, so that these rows, but for one thread, are worse than without."""


def in_threads(asked: argparse.Namespace, method: str, counts: list[int]) -> Iterator[tuple[int, float]]:
    """Each number of threads, and the median seconds of a round. All play the same rounds, after the first."""
    if method == ITSELF:
        yield from machine_itself(asked.rounds, counts)
        return
    config = RunConfig(method=method, data=asked.data, protocol="paper", engine=asked.engine)
    trainer = make_trainer(config, config.build(), leave_one_out(config.load(), config.seed), "cpu")
    trainer.play(1)
    first = trainer.state.copy()
    for count in counts:
        torch.set_num_threads(count)
        trainer.state = first.copy()
        yield count, median_on_cores(count, asked.rounds, lambda turn: trainer.play(turn + 2))


def machine_itself(rounds: int, counts: list[int]) -> Iterator[tuple[int, float]]:
    """Each number of threads, and the median seconds in which they do the same arithmetic."""
    some_arithmetic(1)  # compiled here
    for count in counts:
        yield count, median_on_cores(count, rounds, partial(arithmetic_in, count))


def arithmetic_in(count: int, _turn: int) -> None:
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(some_arithmetic, [count] * count))


def median_on_cores(count: int, rounds: int, play: Callable[[int], object]) -> float:
    """Median seconds of `play(turn)` on so many cores, each turn on others."""
    cores, spent = sorted(os.sched_getaffinity(0)), []
    for turn in range(rounds + 1):
        start = turn * len(cores) // (rounds + 1)
        run_on([*cores[start:], *cores[:start]][:count])
        began = time.perf_counter()
        play(turn)
        spent.append(time.perf_counter() - began)
    run_on(cores)
    return median(spent[1:])  # in the first one threads get their memory


def run_on(cores: list[int]) -> None:
    """Let all threads of this process run only on these cores."""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # a thread that has ended since
            os.sched_setaffinity(int(thread.name), cores)


def in_processes(asked: argparse.Namespace, method: str, counts: list[int]) -> Iterator[tuple[int, float]]:
    """Each number of processes, and the median seconds of a round, after the first, which loads kernels."""
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), "--standalone"]
            command += ["-m", "federec", "train", method, "--data", asked.data, "--protocol", "paper"]
            command += ["--engine", asked.engine, "--rounds", str(asked.rounds), "--out", str(out), "--quiet"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
            lines = [json.loads(line)["seconds"] for line in (out / "rounds.jsonl").read_text().splitlines()]
        yield count, median(sum(line.values()) for line in lines[1:])


def doubling(most: int) -> list[int]:
    """1, 2, 4, ... and `most` itself."""
    return sorted({*(2**power for power in range(most.bit_length())), most})


def generated(folder: str) -> str:
    """Data of 10,000 devices on 100,000 items."""
    counts = ["--users", "10000", "--items", "100000", "--interactions", "1000000"]
    command = [sys.executable, "-m", "federec", "data", "generate", *counts, "--out", f"{folder}/data"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return f"{folder}/data"


def over_line(asked: argparse.Namespace, data: str, participation: float) -> tuple[float, float, float]:
    """Median seconds of a round on two machines, the MB that the first sends in a round, and the MB of all shared
    parameters."""
    with tempfile.TemporaryDirectory() as folder, two_machines(asked.mbit) as machines:
        out, running = Path(folder) / "run", []
        for machine in machines:
            first = machine is machines[0]
            command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
            command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "10.0.0.1:29500", "--local-addr", machine.address]
            command += ["--rdzv-conf", f"is_host={int(first)}", "-m", "federec", "train", *asked.method]
            command += ["--data", data, "--engine", asked.engine, "--rounds", str(asked.rounds), "--out", str(out)]
            command += ["--participation", str(participation), "--evaluate-users", "1000", "--quiet"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
            running.append(subprocess.Popen(machine.command(*command), env=environment, stdout=subprocess.DEVNULL))
        codes = [process.wait() for process in running]
        if any(codes):
            raise SystemExit("a machine ended with an error")
        lines = [json.loads(line)["seconds"] for line in (out / "rounds.jsonl").read_text().splitlines()]
        state = load_file(out / "model" / f"state-{len(lines)}.safetensors")
        sent = machines[0].sent() / len(lines) / 1e6
    shared = sum(value.nbytes for name, value in state.items() if name.startswith("shared:")) / 1e6
    return median(line["train"] + line["evaluate"] for line in lines[1:]), sent, shared


def line_table(asked: argparse.Namespace) -> None:
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        data = generated(folder)
        for participation in asked.participation:
            seconds, sent, shared = over_line(asked, data, participation)
            rows.append([f"{participation:.0%}", f"{shared:.1f}", f"{sent:.2f}", f"{seconds:.2f}"])
            print(*rows[-1], flush=True)
    title = f"{asked.method[0]}, 10,000 devices, 100,000 items, {asked.mbit} Mbit/s between the machines."
    text = f"{title}\n\n{table(['take part', 'shared parameters, MB', 'sent a round, MB', 's a round'], rows)}"
    if asked.page:
        put("scaling-line", "Two machines", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--threads", nargs="*", type=int, help="of one process, instead of several processes")
    parser.add_argument("--data", default="ml-1m")
    threads_have = " ".join([*METHODS, ITSELF])
    parser.add_argument("--method", nargs="+", help=f"default: with threads {threads_have}, else pfedrec")
    parser.add_argument("--engine", default="fused")
    parser.add_argument("--rounds", type=int, help="default: 6 in threads, 20 in processes")
    parser.add_argument("--mbit", type=int, help="of the line between two machines, instead of processes of one")
    parser.add_argument("--participation", nargs="+", type=float, default=[0.01, 0.1, 1.0], help="with --mbit")
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    threaded = asked.threads is not None
    counts = (asked.threads or doubling(cores)) if threaded else asked.processes
    asked.method = asked.method or ([*METHODS, ITSELF] if threaded else ["pfedrec"])
    asked.rounds = asked.rounds or (6 if threaded else 20)
    if asked.mbit:
        return line_table(asked)
    measure = in_threads if threaded else in_processes
    rows: list[list[str]] = []
    drawn = {}
    for method in asked.method:
        alone = 0.0
        for workers, seconds in measure(asked, method, counts):
            alone = alone or seconds * workers
            speed_up = alone / seconds
            rows.append([method, str(workers), f"{seconds:.4f}", f"{speed_up:.2f}", f"{speed_up / workers:.0%}"])
            drawn[f"{method}, {workers}"] = {"": seconds}
            print(*rows[-1], flush=True)
    title = f"{', '.join(asked.method)} on {asked.data}, {asked.engine} engine, {cores} cores."
    workers_are = "threads" if threaded else "processes"
    text = f"{title}\n\n{table(['method', workers_are, 's a round', 'speed-up', 'efficiency'], rows)}"
    if threaded:
        text += f"\n\n{PINNED}"
    print(f"\n{text}")
    if asked.page:
        name, where = ("scaling-threads", "in one process") if threaded else ("scaling", "under torchrun")
        put(name, f"Strong scaling {where}", f"{text}\n\n{bars(name, 'seconds a round', drawn)}")


if __name__ == "__main__":
    main()
