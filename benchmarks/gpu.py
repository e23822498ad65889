"""Rounds on a GPU with the fused engine, evaluation in every round, and how fast memory could move their bytes.

python benchmarks/gpu.py [--data ml-1m] [--rounds 100] [--method pfedrec fedrap]
"""

from __future__ import annotations

import argparse
import time

import torch

if not torch.cuda.is_available():
    raise SystemExit("no GPU is usable here; see `federec doctor`")

from torch.profiler import ProfilerActivity, profile

import federec as fr
from federec.cohort.draw import Devices
from federec.data.split import leave_one_out
from federec.evaluation.candidates import SAMPLED
from federec.evaluation.protocols import protocol
from federec.federation.fused_gpu import Draws
from federec.methods.pfedrec import PFedRec
from federec.plugins.registry import build
from federec.runtimes.trainers import trainer


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
    order are read; a row that a device holds is fetched and kept, its change added to the sum; a candidate's code and
    row are read, its score is written."""
    users = torch.arange(len(devices), device=devices.ptr.device)
    lengths = devices.lengths(users, method.negatives)
    drawn = Draws(devices, users, lengths, int(lengths.sum()), 0, 1, method.negatives)
    samples, row = len(drawn.samples), 4 * method.dim
    held = len(torch.unique(drawn.owner * devices.n_items + (drawn.samples >> 1)))
    asked = len(devices) * 2 * (1 + SAMPLED)
    return samples * (2 * row + 8) + held * 4 * row + asked * (8 + row + 4)


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
    worker = trainer(build(name), leave_one_out(data, 0), protocol("paper"), 0, place="cuda", engine="fused")
    for round_ in (1, 2, 3):
        worker.play(round_)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for round_ in range(4, 4 + times):
            worker.play(round_)
        torch.cuda.synchronize()
    return {event.key: event.device_time_total / times / 1000 for event in profiled.key_averages()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="ml-1m")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--method", nargs="+", default=["pfedrec", "fedmf", "fedrap"])
    asked = parser.parse_args()
    data, speed = fr.load(asked.data), bandwidth()
    print(f"{torch.cuda.get_device_name()}: a copy moves {speed / 1e12:.2f} TB/s")
    print(f"{'method':<10} {'warm-up s':>10} {f'{asked.rounds} rounds s':>13} {'with end s':>11} {'HR@10':>7}")
    for name in asked.method:
        first = rounds(name, data, 3)[0]
        _, played, whole, hr = rounds(name, data, asked.rounds)
        print(f"{name:<10} {first:10.2f} {played:13.3f} {whole:11.2f} {hr:7.4f}", flush=True)
    for name in asked.method:
        spent = kernels(name, data)
        print(f"\n{name}: {sum(spent.values()):.3f} ms a round in kernels")
        for kernel, each in sorted(spent.items(), key=lambda pair: -pair[1])[:8]:
            print(f"{each:10.3f} ms  {kernel[:90]}")
        if name == "pfedrec":
            need = needed_bytes(PFedRec(), Devices.of(leave_one_out(data, 0), True, "cuda"))
            floor = need / speed * 1000
            ratio = spent["linear_round"] / floor
            print(f"{need / 1e9:.2f} GB must move, in {floor:.3f} ms; linear_round takes {ratio:.1f} times as long")


if __name__ == "__main__":
    main()
