"""Rounds on a GPU, evaluation in every round: by both engines, and how fast memory could move the bytes of one.

python benchmarks/gpu.py [--data ml-1m] [--rounds 100] [--method pfedrec fedrap] [--page]

The methods asked for play a whole run; a few rounds are played of every method on devices, and of PFedRec with each
plug-in.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch

if not torch.cuda.is_available():
    raise SystemExit("no GPU is usable here; see `federec doctor`")

from page import bars, put, table
from torch.profiler import ProfilerActivity, profile

import federec as fr
from federec.cohort.draw import Devices
from federec.data.split import Split, leave_one_out
from federec.evaluation.candidates import SAMPLED
from federec.evaluation.protocols import protocol
from federec.federation.engine import fits
from federec.federation.fused_gpu import Draws, Schedule
from federec.methods.base import DeviceMethod
from federec.methods.pfedrec import PFedRec
from federec.methods.registry import METHODS
from federec.plugins.registry import PLUGINS, build
from federec.runtimes.simulation import EngineName, trainer


def bandwidth() -> float:
    """Bytes a second that a copy on the GPU reads and writes: the best of ten copies of 4 GiB."""
    source = torch.randint(255, (2**32,), dtype=torch.uint8, device="cuda")
    target, best = torch.empty_like(source), 0.0
    for _ in range(10):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        target.copy_(source)
        ended.record()
        torch.cuda.synchronize()
        best = max(best, 2 * source.numel() / began.elapsed_time(ended) * 1000)
    return best


def needed_bytes(method: PFedRec, devices: Devices) -> int:
    """What a round of PFedRec must move at least: a sample's row is read and written, its code and its place in the
    order are read; the change of a row that a device holds is added to the sum; a candidate's code and row are read,
    its score is written."""
    users = torch.arange(len(devices), device=devices.ptr.device)
    schedule = Schedule(devices, users, method.negatives)
    drawn = Draws(devices, schedule, 0, 1, method.negatives)
    samples, row = len(drawn.samples), 4 * method.dim
    held = len(torch.unique(schedule.owner * devices.n_items + (drawn.samples >> 1)))
    asked = len(devices) * 2 * (1 + SAMPLED)
    return samples * (2 * row + 8) + held * 2 * row + asked * (8 + row + 4)


def rounds(name: str, data: fr.Interactions, count: int) -> tuple[float, float, float, float]:
    """Seconds before the first round ends, of all rounds, of the whole run with its final evaluation; HR@10."""
    ends: list[float] = []
    began = time.perf_counter()
    run = fr.train(
        name,
        data,
        rounds=count,
        protocol="paper",
        device="cuda",
        engine="fused",
        on_round=lambda line, rounds: ends.append(time.perf_counter()),
    )
    played = sum(line["seconds"]["train"] + line["seconds"]["evaluate"] for line in run.history)
    return ends[0] - began, played, time.perf_counter() - began, run.test["sampled"]["hr@10"]


def kernels(name: str, data: fr.Interactions, times: int = 10) -> dict[str, float]:
    """Milliseconds a round in each GPU kernel, by name."""
    worker = trainer(build(name), leave_one_out(data, 0), protocol("paper"), 0, device="cuda", engine="fused")
    for round_ in (1, 2, 3):
        worker.play(round_)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for round_ in range(4, 4 + times):
            worker.play(round_)
        torch.cuda.synchronize()
    return {event.key: event.device_time_total / times / 1000 for event in profiled.key_averages()}


def round_seconds(method: DeviceMethod, split: Split, engine: EngineName, part: float, times: int = 5) -> float:
    """Of a round of that part of the devices, the median after the first two."""
    worker, spent = trainer(method, split, protocol("paper"), 0, part, "cuda", engine), []
    for round_ in range(1, 3 + times):
        began = time.perf_counter()
        worker.play(round_)
        torch.cuda.synchronize()
        spent.append(time.perf_counter() - began)
    return median(spent[2:])


def engines(split: Split) -> list[list[str]]:
    """A line for every method on devices, and for PFedRec with every plug-in: seconds a round by engine. One more for
    methods whose rounds have fewer devices unless they are told otherwise."""
    alone = [(name, ()) for name, method in METHODS.items() if issubclass(method, DeviceMethod)]
    lines = []
    for name, plugins in [*alone, *(("pfedrec", (plugin,)) for plugin in PLUGINS)]:
        method = build(name, plugins)
        fused = fits(method.fused_form(split.data.n_items), "cuda")
        for part in sorted({1.0, method.default_participation}, reverse=True):
            label = "+".join((name, *plugins)) + ("" if part == 1 else f", {part * 100:g} % of them")
            seconds = f"{round_seconds(method, split, 'torch', part):.4f}"
            lines.append([label, seconds, f"{round_seconds(method, split, 'fused', part):.4f}" if fused else "-"])
            print("{:<24} {:>10} {:>10}".format(*lines[-1]), flush=True)
            torch.cuda.empty_cache()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="ml-1m")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--method", nargs="+", default=["pfedrec", "fedmf", "fedrap"])
    parser.add_argument("--page", action="store_true", help="write the section of docs/benchmarks.md")
    asked = parser.parse_args()
    data, speed = fr.load(asked.data), bandwidth()
    split = leave_one_out(data, 0)
    told = [f"{torch.cuda.get_device_name()}: a copy moves {speed / 1e12:.2f} TB/s."]
    print(told[0])
    head = ["fused engine", "warm-up, s", f"{asked.rounds} rounds, s", "with the final evaluation, s", "HR@10"]
    lines = []
    for name in asked.method:
        first = rounds(name, data, 3)[0]
        _, played, whole, hr = rounds(name, data, asked.rounds)
        lines.append([name, f"{first:.2f}", f"{played:.3f}", f"{whole:.2f}", f"{hr:.4f}"])
        print("{:<10} warm-up {} s, rounds {} s, with end {} s, HR@10 {}".format(*lines[-1]), flush=True)
    both = engines(split)
    for name in asked.method:  # last, so that nothing is timed after a profiler has been at work
        spent = kernels(name, data)
        told.append(f"{name}: {sum(spent.values()):.2f} ms of a round are spent in kernels.")
        print(f"\n{told[-1]}")
        for kernel, each in sorted(spent.items(), key=lambda pair: -pair[1])[:8]:
            print(f"{each:10.3f} ms  {kernel[:90]}")
        if name == "pfedrec":
            need = needed_bytes(PFedRec(), Devices.of(split, True, "cuda"))
            floor = need / speed * 1000
            ratio = spent["linear_round"] / floor
            told.append(
                f"{need / 1e9:.2f} GB must move, in {floor:.3f} ms; `linear_round` takes {ratio:.1f} times that."
            )
            print(told[-1])
    each = table([f"a round of all devices, {asked.data}", "torch, s", "fused, s"], both)
    if asked.page:
        drawn = {
            name: {engine: float(s) for engine, s in zip(("torch", "fused"), seconds, strict=True) if s != "-"}
            for name, *seconds in both
        }
        plot = bars("gpu", "seconds a round", drawn)
        put("gpu", f"On a GPU, {asked.data}", f"{table(head, lines)}\n\n{' '.join(told)}\n\n{each}\n\n{plot}")


if __name__ == "__main__":
    main()
