"""What the order of items is worth, centralised and federated: accuracy against rounds and against bytes per device.

    python benchmarks/order.py --out order.jsonl [--data ml-1m ml-100k] [--device cuda] [--jobs 4] [--seeds 11 12 13]
                               [--only WORD] [--keep FOLDER] [--page]

Trains `sasrec`, `fedsasrec` and `fednext` under `clean`, each run in a process of its own and `--jobs` at a time, the
most important ones first. A run is one line of the `--out` file, written when it ends; what the file has is not trained
again. `--only` takes the runs whose label has the word in it. `--keep` stores run folders, for `benchmarks/hybrid.py`.
With `--page` the section of docs/accuracy.md is written from the file; `--jobs 0` only does that.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from page import put, save, table

import federec as fr

Line = dict[str, Any]
HEAD = [
    *("run", "seeds", "rounds", "HR@10", "NDCG@10", "of `sasrec`", "validation NDCG@10", "best round"),
    *("kB up a round", "kB down a round", "MB of a device in all", "precision of scores"),
]


@dataclass(frozen=True)
class Plan:
    """A run, for some seeds."""

    data: str
    label: str
    method: fr.Method
    rounds: int | None = None
    channel: tuple[str, ...] = ()
    main: bool = False
    """With all seeds; others have the first one only."""

    def key(self, seed: int) -> str:
        return f"{self.data}: {self.label}: seed {seed}"


def plans() -> Iterator[Plan]:
    """All runs, the most important ones first. A round of `fedsasrec` has a tenth of the devices, and an epoch of
    `sasrec` ten steps with as many users: both take the same number of steps. `one order`: items of the same time have
    the order that the split drew for them in all rounds, not a new one in each."""
    large, small = {"dim": 128, "dropout": 0.15}, {"dim": 64, "dropout": 0.4}
    yield Plan("ml-1m", "sasrec, dim 128", fr.SASRec(batch=604, **large), 145, main=True)
    yield Plan("ml-1m", "fedsasrec, dim 128", fr.FedSASRec(**large), 1450, main=True)
    yield Plan("ml-1m", "fednext", fr.FedNext(), main=True)
    yield Plan("ml-100k", "sasrec, dim 64", fr.SASRec(batch=95, **small), 125, main=True)
    yield Plan("ml-100k", "fedsasrec, dim 64", fr.FedSASRec(**small), 1250, main=True)
    yield Plan("ml-100k", "fednext", fr.FedNext(), main=True)
    yield Plan("ml-100k", "sasrec, dim 128", fr.SASRec(batch=95, dim=128, dropout=0.4), 125, main=True)
    yield Plan("ml-100k", "fedsasrec, dim 128", fr.FedSASRec(dim=128, dropout=0.4), 1250, main=True)
    for data, dim, dropout, batch, rounds in (("ml-1m", 128, 0.2, 604, 145), ("ml-100k", 64, 0.4, 95, 125)):
        settings: dict[str, Any] = {"dim": dim, "dropout": dropout, "reorder": False}
        words = f"dim {dim}, dropout {dropout:g}, one order"
        yield Plan(data, f"sasrec, {words}", fr.SASRec(batch=batch, **settings), rounds, main=True)
        yield Plan(data, f"fedsasrec, {words}", fr.FedSASRec(**settings), 10 * rounds, main=True)
    yield Plan("ml-1m", "fedsasrec, dim 64", fr.FedSASRec(dim=64, dropout=0.2), 1450)
    eight = ("quantise:bits=8",)
    yield Plan("ml-1m", "fedsasrec, dim 64, 8 bits", fr.FedSASRec(dim=64, dropout=0.2), 1450, eight)
    yield Plan("ml-100k", "fedsasrec, dim 64, 8 bits", fr.FedSASRec(**small), 1250, eight)
    often = fr.SASRec(batch=128, lr=0.001, dim=128, dropout=0.2, reorder=False)
    yield Plan("ml-1m", "sasrec, dim 128, batches of 128, one order", often, 60)
    dropped = fr.SASRec(batch=604, dim=128, dropout=0.3, reorder=False)
    yield Plan("ml-1m", "sasrec, dim 128, dropout 0.3, one order", dropped, 145)
    yield Plan("ml-1m", "sasrec, dim 64", fr.SASRec(batch=604, dim=64, dropout=0.2), 145)
    yield Plan("ml-100k", "fedsasrec, dim 64, dropout 0.2", fr.FedSASRec(dim=64, dropout=0.2), 1250)
    for data, dropout, rounds in (("ml-100k", 0.4, 1250), ("ml-1m", 0.2, 1450)):
        for steps in (2, 4):
            fewer, settings = rounds // steps, {"dim": 64, "dropout": dropout}
            yield Plan(data, f"fedsasrec, dim 64, {fewer} rounds", fr.FedSASRec(**settings), fewer)
            for rate in (0.1, 1.0):
                method = fr.FedSASRec(local_steps=steps, local_lr=rate, **settings)
                yield Plan(data, f"fedsasrec, dim 64, {steps} local steps of {rate:g}", method, fewer)


def train(plan: Plan, data: fr.Interactions, seed: int, device: str, out: Path, keep: Path | None) -> None:
    """Train, and write the line."""
    began = time.perf_counter()
    run = fr.train(
        plan.method, data, seed=seed, rounds=plan.rounds, channel=plan.channel, device=device, progress=False
    )
    share, traffic, curve = run.config.participation or 1.0, 0.0, []
    for line in run.history:
        traffic += share * ((line["up_bytes"] or 0) + (line["down_bytes"] or 0))
        if "valid_full" in line:
            curve.append([line["round"], round(line["valid_full"]["ndcg@10"], 5), round(traffic)])
    found = {
        "key": plan.key(seed),
        "data": plan.data,
        "label": plan.label,
        "seed": seed,
        "rounds": len(run.history),
        "best_round": run.result["best_round"],
        "valid": run.valid["full"],
        "test": run.test["full"],
        "fresh": run.test["fresh"]["full"],
        "fresh_sampled": run.test["fresh"]["sampled"],
        "up_bytes": run.result["communication"]["up_bytes_per_device_round"],
        "down_bytes": run.result["communication"]["down_bytes_per_device_round"],
        "bytes": traffic,
        "seconds": run.result["seconds"] | {"all": time.perf_counter() - began},
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "a CPU",
        "precision": torch.get_float32_matmul_precision(),
        "torch": torch.__version__,
        "settings": run.result["config"]["settings"],
        "curve": curve,
    }
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")
    fresh = found["fresh"]
    print(
        f"{plan.key(seed)}: {fresh['hr@10']:.4f} / {fresh['ndcg@10']:.4f}, {found['seconds']['all']:.0f} s", flush=True
    )
    if keep is not None:
        run.save(folder(keep, plan, seed))


def folder(keep: Path, plan: Plan, seed: int) -> Path:
    """Where a run is kept."""
    return keep / plan.key(seed).replace(": ", "-").replace(", ", "-").replace(" ", "-")


def train_all(asked: argparse.Namespace) -> None:
    """Some processes at a time. They are forked, so that each has the data and none another one's GPU context."""
    done = {line["key"] for line in lines(asked.out)}
    wanted = [plan for plan in plans() if plan.data in asked.data and asked.only in plan.label]
    sets = {name: fr.load(name) for name in dict.fromkeys(plan.data for plan in wanted)}
    waiting = [(plan, seed) for plan in wanted for seed in (asked.seeds if plan.main else asked.seeds[:1])]
    waiting = [(plan, seed) for plan, seed in waiting if plan.key(seed) not in done]
    context, running = multiprocessing.get_context("fork"), list[Any]()
    while waiting or running:
        running = [process for process in running if process.is_alive()]
        if waiting and len(running) < asked.jobs:
            plan, seed = waiting.pop(0)
            given = plan, sets[plan.data], seed, asked.device, asked.out, asked.keep
            running.append(context.Process(target=train, args=given))
            running[-1].start()
        time.sleep(0.2)


def lines(out: Path) -> list[Line]:
    """The runs that have ended."""
    return [json.loads(text) for text in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []


def section(found: list[Line]) -> str:
    """The tables."""
    parts = [
        "Test items among all items under `clean`, ties at random, with fresh histories: the device also knows its "
        "validation item when it ranks. Where there are several seeds, mean ± standard deviation. Traffic is that of a "
        "device: bytes of a round that it takes part in, and of the whole run, up and down, for an average device (a "
        f"tenth of the rounds of `fedsasrec`, all of those of `fednext`). Trained on {_listed(found, 'device')}. "
        "`of sasrec`: NDCG@10 beside that of `sasrec` with the same settings. `one order`: items of the same time keep "
        "the order that was drawn for them; otherwise they get a new one in each round. That, and the dropout of dim "
        "128, was chosen by validation from four settings on a seed of its own. "
        "Precision of scores: `high` lets a GPU round the factors of matrix products to TF32, `highest` does not; "
        "gradients on a GPU do so in either case."
    ]
    order = {plan.key(0): number for number, plan in enumerate(plans())}
    for data in dict.fromkeys(line["data"] for line in found):
        groups: dict[str, list[Line]] = {}
        mine = (line for line in found if line["data"] == data)
        for line in sorted(mine, key=lambda line: order.get(f"{data}: {line['label']}: seed 0", len(order))):
            groups.setdefault(line["label"], []).append(line)
        rows = []
        for label, group in groups.items():
            twin = groups.get(label.removeprefix("fed"), []) if label.startswith("fed") else []
            rows.append(_row(label, group, twin))
        parts += [f"### {data}", table(HEAD, rows)]
    return "\n\n".join(parts)


def _row(label: str, group: list[Line], twin: list[Line]) -> list[str]:
    """`twin`: the centralised runs with the same settings."""
    first = group[0]
    ratio = f"{_mean(group, 'fresh', 'ndcg@10') / _mean(twin, 'fresh', 'ndcg@10'):.1%}" if twin else ""
    traffic = ["", "", ""]
    if first["bytes"]:
        traffic = [
            f"{first[way] / size:,.0f}" for way, size in (("up_bytes", 1e3), ("down_bytes", 1e3), ("bytes", 1e6))
        ]
    figures = [_shown(group, "fresh", "hr@10"), _shown(group, "fresh", "ndcg@10"), ratio]
    figures += [_shown(group, "valid", "ndcg@10"), f"{mean(line['best_round'] for line in group):.0f}"]
    return [label, str(len(group)), str(first["rounds"]), *figures, *traffic, _listed(group, "precision")]


def _listed(found: list[Line], key: str) -> str:
    return ", ".join(dict.fromkeys(line[key] for line in found))


def _mean(group: list[Line], part: str, metric: str) -> float:
    return mean(line[part][metric] for line in group)


def _shown(group: list[Line], part: str, metric: str) -> str:
    """In percent."""
    values = [100 * line[part][metric] for line in group]
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def figure(found: list[Line]) -> str:
    """Validation NDCG@10 of the first seed of each federated run, over rounds and over a device's bytes."""
    from matplotlib.figure import Figure

    sets = list(dict.fromkeys(line["data"] for line in found))
    drawn = Figure(figsize=(9, 3.4 * len(sets)), layout="constrained")
    for data, (by_round, by_bytes) in zip(sets, drawn.subplots(len(sets), 2, squeeze=False, sharey="row"), strict=True):
        first: dict[str, Line] = {}
        for line in sorted((line for line in found if line["data"] == data), key=lambda line: line["seed"]):
            first.setdefault(line["label"], line)
        for label, line in first.items():
            if label.startswith("sasrec"):
                continue  # it ranks all users in every round, the others a sample of them: not comparable here
            rounds, values, traffic = zip(*line["curve"], strict=True)
            if label == "fednext":
                by_bytes.plot(traffic[-1] / 1e6, 100 * max(values), "k*", label=label)
            else:
                for axes, x in ((by_round, rounds), (by_bytes, [each / 1e6 for each in traffic])):
                    axes.plot(x, [100 * value for value in values], linewidth=1, label=label)
        by_round.set(xlabel="rounds", ylabel=f"{data}: validation NDCG@10, %")
        by_bytes.set(xlabel="MB of an average device, up and down", xscale="log")
        by_bytes.legend(fontsize=8, loc="lower right")
        for axes in (by_round, by_bytes):
            axes.grid(alpha=0.3)
    title = "Validation NDCG@10 of a sample of the users, over rounds and over bytes of a device; first seed"
    return save(drawn, "order", title)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", nargs="+", default=["ml-1m", "ml-100k"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", nargs="+", type=int, default=[11, 12, 13])
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    if asked.jobs:
        train_all(asked)
    found = lines(asked.out)
    text = section(found)
    print(text)
    if asked.page:
        where = f"{_listed(found, 'device')}; torch {_listed(found, 'torch')}"
        put("order", "What order is worth", f"{text}\n\n{figure(found)}", where, page="accuracy")


if __name__ == "__main__":
    main()
