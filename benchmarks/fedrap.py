"""FedRAP's seconds a round and peak memory, one CPU thread, and how much faster that is than a loop over clients.

python benchmarks/fedrap.py [--data ml-100k ml-1m] [--engine fused torch] [--rounds 5] [--clients 20] [--page]

The loop is FedRAP as its authors organised it: for every client a deep copy of the model, a DataLoader, and torch's
SGD over three groups of parameters, up to ten passes; dense tables, so that weight decay touches all of them. It is run
on some clients, drawn at random, and scaled to all of them. Seconds are CPU seconds: of the loop its training
alone, of federec whole rounds.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch
from page import bars, put, table
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from federec.cohort.draw import Devices, draw
from federec.data.split import leave_one_out
from federec.methods.fedrap import FedRAP
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder
from federec.runtimes.local import run


class Client(nn.Module):
    """A client's whole model."""

    def __init__(self, n_items: int, dim: int) -> None:
        super().__init__()
        self.common, self.own = nn.Embedding(n_items, dim), nn.Embedding(n_items, dim)
        self.score = nn.Linear(dim, 1)

    def forward(self, items: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        own, common = self.own(items), self.common(items)
        return torch.sigmoid(self.score(own + common)).squeeze(1), own, common


def learn(method: FedRAP, model: Client, items: torch.Tensor, labels: torch.Tensor, round_: int) -> nn.Module:
    """One client's round, on a copy of its model."""
    model = copy.deepcopy(model)
    sizes = {model.score: method.lr, model.own: method.item_lr, model.common: method.item_lr}
    groups = [{"params": part.parameters(), "lr": lr} for part, lr in sizes.items()]
    optimiser = torch.optim.SGD(groups, weight_decay=method.weight_decay)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, method.step_decay)
    away, small = method.weights(round_)
    last, total, seen = 0.0, 0.0, 0
    for epoch in range(method.epochs):
        for batch, wanted in DataLoader(TensorDataset(items, labels), method.batch, shuffle=True):
            optimiser.zero_grad()
            rating, own, common = model(batch)
            loss = nn.functional.binary_cross_entropy(rating, wanted)
            loss = loss - away * nn.functional.mse_loss(own, common) + small * common.abs().mean()
            loss.backward()
            optimiser.step()
            schedule.step()
            total, seen = total + loss.item() * len(batch), seen + len(batch)
        mean = total / seen
        if epoch and abs(mean - last) < method.tolerance * abs(last):
            break
        last = mean
    return model


def loop(data: str, clients: int, round_: int = 3) -> float:
    """CPU seconds of a round of all clients, one after the other, from those of some."""
    method, split = FedRAP(), leave_one_out(RunConfig.checked(method="fedrap", data=data, protocol="paper").load(), 0)
    devices, model = Devices.of(split, close_held_out=True), Client(split.data.n_items, method.dim)
    chosen = torch.randperm(len(devices), generator=torch.Generator().manual_seed(0))[:clients]
    total, began = torch.zeros_like(model.common.weight), time.process_time()
    for user in chosen:
        samples = draw(devices, user[None], 0, round_, method.negatives)
        learned = learn(method, model, samples.items[0].long(), samples.labels[0], round_)
        total += learned.get_parameter("common.weight").detach() - model.common.weight.detach()
    return (time.process_time() - began) / len(chosen) * len(devices)


def play(data: str, engine: str, rounds: int) -> tuple[float, float]:
    """CPU seconds of a whole round at the median - draw, learn, evaluate, store - and the run's peak MB."""
    torch.set_num_threads(1)
    marks: list[float] = []
    config = RunConfig.checked(method="fedrap", data=data, protocol="paper", rounds=rounds, engine=engine)
    with tempfile.TemporaryDirectory() as folder:
        out = RunFolder(Path(folder) / "run")
        result = run(config, config.load(), out, lambda line, rounds: marks.append(time.process_time())).result
    return median(after - before for before, after in pairwise(marks)), result["peak_rss_mb"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["ml-100k", "ml-1m"])
    parser.add_argument("--engine", nargs="+", default=["fused", "torch"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows, drawn = [], {}
    for data in asked.data:
        slow = loop(data, asked.clients)
        drawn[data] = {"one client at a time": slow}
        for engine in asked.engine:
            # A process of its own for each run, so that peak memory is its own too.
            with ProcessPoolExecutor(1, get_context("spawn")) as alone:
                seconds, peak = alone.submit(play, data, engine, asked.rounds).result()
            drawn[data][f"federec, {engine}"] = seconds
            rows.append([data, f"{slow:.1f}", engine, f"{seconds:.3f}", f"{slow / seconds:.0f}x", f"{peak:.0f}"])
            print(*rows[-1], flush=True)
    text = table(["fedrap", "loop, s", "engine", "s a round", "ratio", "peak MB"], rows)
    print(f"\n{text}")
    if asked.page:
        put(
            "fedrap",
            "FedRAP against a loop over clients",
            f"{text}\n\n{bars('fedrap', 'CPU seconds a round, one thread', drawn)}",
        )


if __name__ == "__main__":
    main()
