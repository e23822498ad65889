"""What differential privacy costs: accuracy over epsilon, of five methods, and of closed forms among many users.

    python benchmarks/privacy.py --out privacy.jsonl [--data ml-1m] [--device cuda] [--jobs 2] [--seeds 11 12 13]
                                 [--epsilons 0.5 1 2 4 8 16] [--budget 6] [--only WORD] [--users 1000000]
                                 [--growth 2 4 8 16] [--page]

Every method is trained under `clean` with central noise at each epsilon and delta 1e-6, with up to `--budget` settings
(fewer rounds, narrower rows, other steps, a fixed or an adaptive norm); the best one on validation counts, of the first
seed, and is then trained with the other seeds. `none` is the same method without noise and clipping; `popularity` is
there to compare with. With `--users` the closed forms also run on synthetic data of so many users. `--growth 4` also
trains the closed forms at epsilon 4 with a quarter of the noise: what four times as many users like these would have.

A run is one line of the `--out` file, written when it ends; what the file has is not trained again. `--only` takes the
methods whose name has the word in it. With `--page` the section of docs/accuracy.md is written from the file;
`--jobs 0` only does that.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from page import put, save, table

import federec as fr
from federec.data.generate import generate
from federec.privacy.cost import Gaussian, multiplier

Line = dict[str, Any]
DELTA = 1e-6
GOAL = 0.85
"""Of the accuracy without noise."""
REFERENCE = "popularity"
"""Learns nothing of users, so a method that is no better under noise has no use there."""
TICKS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
ITEMS, ACTIVITY = 2000, 40
"""Items, and interactions of a user, of synthetic data."""


@dataclass(frozen=True)
class Plan:
    """A run of a method with one of its settings at one epsilon."""

    data: str
    method: str
    setting: str
    settings: dict[str, Any]
    epsilon: float | None = None
    """None: without noise and without clipping."""
    rounds: int | None = None
    channel: tuple[str, ...] = ()
    """Instead of the stages that an epsilon chooses; the multiplier is solved for."""
    times: float = 1.0
    """So many times as many users like these: their noise is so much smaller beside what they say."""
    seed: int = 0

    @property
    def key(self) -> str:
        more = "" if self.times == 1 else f", {self.times:g} x users"
        return f"{self.data}: {self.method}: {self.setting}: epsilon {self.epsilon}{more}: seed {self.seed}"


NOISE = "central-noise"


def _clip(norm: float) -> tuple[str, ...]:
    return (f"clip:norm={norm:g}", NOISE)


def fedease() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """One upload. A run tries penalties, numbers of items and half-lives on it at no cost."""
    free = {"popular": [600, 1200, 0], "recency": [4.0, 16.0]}  # fewer than 20 trials, so that each one is ranked
    l2 = [100.0, 300.0, 1000.0]
    for window in (10.0, 30.0, 0.0):
        yield f"window {window:g}", {"window": [window], "l2": l2, **free}, {"channel": _clip(10.0)}


def fednext() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """One upload of two sums: fewer half-lives are fewer values under noise."""
    for half_life in (4.0, 16.0, 0.0):
        settings = {"half_lives": [[half_life]], "l2": [30.0, 300.0, 3000.0, 30000.0], "blend": [0.0]}
        yield f"half-life {half_life:g}", settings, {"channel": _clip(10.0)}


def fedals() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Several uploads; a device's message has a closed form, too."""
    for dim, rounds, norm in ((32, 2, 0.1), (16, 2, 0.1), (8, 2, 0.1), (32, 4, 0.1), (64, 4, 0.1), (8, 3, 0.1)):
        how = {"rounds": rounds, "channel": _clip(norm)}
        yield f"dim {dim}, {rounds} rounds, norm {norm:g}", {"dim": dim, "alpha": 1.0, "l2": 10.0}, how


def gradient(rates: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Fewer rounds and narrower rows than without noise, all devices in every round. The norm follows the devices, or
    is fixed; a smaller one is a smaller step of the server under less noise."""
    for dim, rounds, clip in ((8, 15, 300), (4, 15, 300), (8, 15, None), (4, 30, 300), (8, 30, 1000), (4, 8, 1000)):
        words = "adaptive norm" if clip is None else f"norm {clip}"
        stages = ("clip:norm=300,quantile=0.5,rate=1", NOISE) if clip is None else _clip(clip)
        yield f"dim {dim}, {rounds} rounds, {words}", {"dim": dim, **rates}, {"rounds": rounds, "channel": stages}


def fedmf() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    yield from gradient({"lr": 0.01486, "item_lr_factor": 2075.0, "negatives": 9, "batch": 115, "epochs": 4})


def pfedrec() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    yield from gradient({})


METHODS = {"fedease": fedease, "fednext": fednext, "fedals": fedals, "fedmf": fedmf, "pfedrec": pfedrec}
CLOSED = ("fedease", "fednext", "fedals")
PLAIN: dict[str, dict[str, Any]] = {
    "fedease": {"l2": [100.0, 300.0, 1000.0], "recency": [4.0, 16.0, 0.0], "window": [0.0, 10.0]},
    "fednext": {},
    "fedals": {},
    "fedmf": {"lr": 0.01486, "item_lr_factor": 2075.0, "negatives": 9, "batch": 115, "epochs": 4},
    "pfedrec": {},
}
"""Settings without noise: those that have no reason to be small."""


def plans(data: str, epsilons: list[float], budget: int, seed: int, names: list[str]) -> Iterator[Plan]:
    """All runs of the first seed: those without noise first, then epsilon by epsilon from the one that matters."""
    yield Plan(data, REFERENCE, "all", {}, seed=seed)
    for name in names:
        yield Plan(data, name, "all", PLAIN[name], seed=seed)
        for setting, settings, how in list(METHODS[name]())[:budget]:
            plain = {key: value for key, value in how.items() if key != "channel"}
            yield Plan(data, name, setting, settings, seed=seed, **plain)
    for epsilon, name in product(sorted(epsilons, key=lambda value: abs(value - 4)), names):
        for setting, settings, how in list(METHODS[name]())[:budget]:
            yield Plan(data, name, setting, settings, epsilon, seed=seed, **how)


def train(plan: Plan, data: fr.Interactions, device: str, out: Path) -> None:
    """Train, and write the line."""
    began = time.perf_counter()
    classes = {
        "fedease": fr.FedEASE,
        "fednext": fr.FedNext,
        "fedals": fr.FedALS,
        "fedmf": fr.FedMF,
        "pfedrec": fr.PFedRec,
        REFERENCE: fr.Popularity,
    }
    method = classes[plan.method](**plan.settings)
    given: dict[str, Any] = {"rounds": plan.rounds, "seed": plan.seed, "device": device, "progress": False}
    given |= {"evaluate_users": 20_000}
    if plan.epsilon is not None and plan.times > 1:
        clip, noise = plan.channel
        solved = multiplier(plan.epsilon, plan.rounds or 1, Gaussian, DELTA) / plan.times
        given |= {"channel": (clip, f"{noise}:multiplier={solved}")}
    elif plan.epsilon is not None:
        given |= {"epsilon": plan.epsilon, "delta": DELTA, "channel": plan.channel}
    found: Line = {"key": plan.key, "data": plan.data, "method": plan.method, "setting": plan.setting}
    found |= {
        "epsilon": plan.epsilon,
        "times": plan.times,
        "seed": plan.seed,
        "users": data.n_users,
        "items": data.n_items,
    }
    try:
        run = fr.train(method, data, **given)
    except fr.UserError as error:
        found["failed"] = str(error)
    else:
        tried = method.tried(run.result["best_round"]) if hasattr(method, "tried") else {}
        found |= {
            "rounds": len(run.history),
            "valid": run.valid["full"]["ndcg@10"],
            "test": run.test["full"]["ndcg@10"],
            "hr": run.test["full"]["hr@10"],
            "privacy": run.result.get("privacy"),
            "best": tried or None,
        }
    found |= {"seconds": time.perf_counter() - began, "torch": torch.__version__}
    found["device"] = torch.cuda.get_device_name(device) if device.startswith("cuda") else "a CPU"
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")
    print(f"{plan.key}: {found.get('test', found.get('failed'))}, {found['seconds']:.0f} s", flush=True)


def train_all(waiting: list[Plan], sets: dict[str, fr.Interactions], asked: argparse.Namespace) -> None:
    """Some processes at a time. They are forked, so that each has the data and none another one's GPU context."""
    done = {line["key"] for line in lines(asked.out)}
    waiting = [plan for plan in waiting if plan.key not in done]
    context, running = multiprocessing.get_context("fork"), list[Any]()
    while waiting or running:
        running = [process for process in running if process.is_alive()]
        if waiting and len(running) < asked.jobs:
            plan = waiting.pop(0)
            running.append(context.Process(target=train, args=(plan, sets[plan.data], asked.device, asked.out)))
            running[-1].start()
        time.sleep(0.2)


def again(found: list[Line], asked: argparse.Namespace, known: list[Plan]) -> list[Plan]:
    """The settings that validation chose, with the other seeds."""
    by_key = {plan.key: plan for plan in known}
    chosen = [
        best(group)["key"] for group in groups([line for line in found if line["seed"] == asked.seeds[0]]).values()
    ]
    return [replace(by_key[key], seed=seed) for seed in asked.seeds[1:] for key in chosen if key in by_key]


def lines(out: Path) -> list[Line]:
    """The runs that have ended."""
    return [json.loads(text) for text in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []


def groups(found: list[Line]) -> dict[tuple[str, str, float | None], list[Line]]:
    """Runs that gave a model, by data, method and epsilon."""
    grouped: dict[tuple[str, str, float | None], list[Line]] = {}
    for line in found:
        if "test" in line and line["times"] == 1:
            grouped.setdefault((line["data"], line["method"], line["epsilon"]), []).append(line)
    return grouped


def best(group: list[Line]) -> Line:
    """The run that is best on validation."""
    return max(group, key=lambda line: line["valid"])


def _figures(group: list[Line]) -> tuple[Line, list[float]]:
    """The chosen setting, and its test figures over seeds."""
    first = min(line["seed"] for line in group)
    chosen = best([line for line in group if line["seed"] == first])
    return chosen, [line["test"] for line in group if line["setting"] == chosen["setting"]]


def section(found: list[Line]) -> str:
    """Tables, a verdict first."""
    grouped, parts = groups(found), []
    for data in dict.fromkeys(line["data"] for line in found):
        methods = [name for name in METHODS if (data, name, None) in grouped]
        epsilons = sorted({line["epsilon"] for line in found if line["data"] == data and line["epsilon"] is not None})
        rows, kept = [], {}
        for method in methods:
            without, plain = _figures(grouped[data, method, None])
            cells = [f"`{method}`", _shown(plain)]
            for epsilon in epsilons:
                group = grouped.get((data, method, epsilon))
                cells.append("" if group is None else _cell(group, plain, found))
                if group is not None and epsilon == 4:
                    kept[method] = mean(_figures(group)[1]) / mean(plain)
            rows.append([*cells, _setting(grouped, data, method, without)])
        users = next(line["users"] for line in found if line["data"] == data)
        head = ["method", "without noise", *(f"epsilon {epsilon:g}" for epsilon in epsilons), "setting at epsilon 4"]
        title = data if data.endswith("users") else f"{data}, {users:,} users"
        parts += [f"### {title}", _verdict(kept), _floor(grouped, data), table(head, rows)]
        parts.append(_grown(found, data))
    return "\n\n".join(part for part in parts if part)


def _floor(grouped: dict[tuple[str, str, float | None], list[Line]], data: str) -> str:
    """What popularity has, and which methods are no better under noise."""
    if (data, REFERENCE, None) not in grouped:
        return ""
    floor = _figures(grouped[data, REFERENCE, None])[1]
    text = f"`{REFERENCE}`, which learns nothing of users and needs only counts, has {_shown(floor)}."
    below: dict[str, list[float]] = {}
    for (name, method, epsilon), group in grouped.items():
        if name == data and epsilon is not None and mean(_figures(group)[1]) <= mean(floor):
            below.setdefault(method, []).append(epsilon)
    parts = [f"`{method}` at epsilon {', '.join(f'{e:g}' for e in sorted(each))}" for method, each in below.items()]
    return text + (f" These are no better: {'; '.join(parts)}." if parts else "")


def _grown(found: list[Line], data: str) -> str:
    """What more users like these would keep at the epsilon of the goal, beside the same seed without noise."""
    grown: dict[tuple[str, float], list[Line]] = {}
    plain: dict[tuple[str, int], list[Line]] = {}
    for line in found:
        if line["data"] == data and "test" in line and line["times"] > 1:
            grown.setdefault((line["method"], line["times"]), []).append(line)
        elif line["data"] == data and "test" in line and line["epsilon"] is None:
            plain.setdefault((line["method"], line["seed"]), []).append(line)
    rows, reached = [], dict[str, int]()
    for (method, times), group in sorted(grown.items()):
        line = best(group)
        users, kept = round(times * line["users"]), line["test"] / best(plain[method, line["seed"]])["test"]
        rows.append([f"`{method}`, {line['setting']}", f"{users:,}", _shown([line["test"]]), f"{kept:.0%}"])
        if kept >= GOAL:
            reached.setdefault(method, users)
    if not rows:
        return ""
    said = " and ".join(f"`{method}` with {users:,} users" for method, users in reached.items()) or "no method"
    head = ["method", "users", "NDCG@10", "of that without noise"]
    verdict = f"At epsilon 4, if there were more users like these (one seed), {GOAL:.0%} is reached by {said}:"
    return f"{verdict}\n\n{table(head, rows)}"


def _setting(grouped: dict[tuple[str, str, float | None], list[Line]], data: str, method: str, without: Line) -> str:
    group = grouped.get((data, method, 4.0))
    return without["setting"] if group is None else _figures(group)[0]["setting"]


def _cell(group: list[Line], plain: list[float], found: list[Line]) -> str:
    """Accuracy, what is left of that without noise, and of the same setting without noise."""
    chosen, figures = _figures(group)
    same = [
        line["test"]
        for line in found
        if (line["data"], line["method"], line["setting"]) == (chosen["data"], chosen["method"], chosen["setting"])
        and line["epsilon"] is None
        and "test" in line
    ]
    text = f"{_shown(figures)} ({mean(figures) / mean(plain):.0%}"
    return text + (f"; {mean(figures) / mean(same):.0%})" if same else ")")


def _verdict(kept: dict[str, float]) -> str:
    if not kept:
        return ""
    method = max(kept, key=lambda name: kept[name])
    reached = "reaches" if kept[method] >= GOAL else "does not reach"
    part = f"{kept[method]:.0%} of its NDCG@10 without noise"
    return f"At epsilon 4 `{method}` keeps most: {part}, which {reached} {GOAL:.0%}."


def _shown(values: list[float]) -> str:
    """In percent."""
    return f"{100 * mean(values):.2f}" + (f" ± {100 * stdev(values):.2f}" if len(values) > 1 else "")


def figure(found: list[Line]) -> str:
    """NDCG@10 over epsilon: a panel for each real data set, and one for all synthetic ones."""
    from matplotlib.figure import Figure

    grouped = groups(found)
    sets = list(dict.fromkeys("synthetic" if "synthetic" in line["data"] else line["data"] for line in found))
    drawn = Figure(figsize=(7, 3.2 * len(sets)), layout="constrained")
    for name, axes in zip(sets, drawn.subplots(len(sets), 1, squeeze=False)[:, 0], strict=True):
        curves = [key for key in grouped if key[0].startswith(name) and key[2] is None]
        for number, (data, method, _) in enumerate(sorted(curves, key=lambda key: grouped[key][0]["users"])):
            points = sorted(
                (e, 100 * mean(_figures(g)[1])) for (d, m, e), g in grouped.items() if (d, m) == (data, method) and e
            )
            label = f"{method}, {grouped[data, method, None][0]['users']:,} users" if name == "synthetic" else method
            colour = "0.4" if method == REFERENCE else f"C{number}"
            if points:
                axes.plot(*zip(*points, strict=True), "o-", color=colour, label=label)
            plain = 100 * mean(_figures(grouped[data, method, None])[1])
            style = "--" if method == REFERENCE else ":"
            axes.axhline(plain, color=colour, linestyle=style, linewidth=1, label=None if points else label)
        axes.set(xscale="log", xlabel="epsilon (dotted: without noise)", ylabel=f"{name}: test NDCG@10, %")
        axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    return save(drawn, "privacy", "Test NDCG@10 among all items over epsilon, at delta 1e-6")


def synthetic(users: int, folder: Path) -> fr.Interactions:
    """Planted tastes, generated once."""
    if not folder.exists():
        generate(folder, users, ITEMS, users * ACTIVITY, seed=1)
    return fr.load(str(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", nargs="*", default=["ml-1m"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", nargs="+", type=int, default=[11])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[*TICKS])
    parser.add_argument("--budget", type=int, default=6)
    parser.add_argument("--only", default="")
    parser.add_argument("--users", type=int)
    parser.add_argument("--growth", nargs="*", type=float, default=[])
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    names = [name for name in METHODS if asked.only in name]
    waiting = [plan for data in asked.data for plan in plans(data, asked.epsilons, asked.budget, asked.seeds[0], names)]
    for data, times, name in product(asked.data, asked.growth, [name for name in names if name in CLOSED]):
        for setting, settings, how in list(METHODS[name]())[: asked.budget]:
            waiting.append(Plan(data, name, setting, settings, 4.0, times=times, seed=asked.seeds[0], **how))
    if asked.jobs:
        sets = {name: fr.load(name) for name in asked.data}
        if asked.users:
            many = f"synthetic, {asked.users:,} users"
            sets[many] = synthetic(asked.users, Path(tempfile.gettempdir()) / f"federec-synthetic-{asked.users}")
            closed = [name for name in names if name in CLOSED]
            waiting += list(plans(many, asked.epsilons, 1, asked.seeds[0], closed))
        train_all(waiting, sets, asked)
        train_all(again(lines(asked.out), asked, waiting), sets, asked)
    found = lines(asked.out)
    text = section(found)
    print(text)
    if asked.page:
        where = "; ".join(dict.fromkeys(f"{line['device']}, torch {line['torch']}" for line in found))
        put(
            "privacy",
            "What differential privacy costs",
            f"{INTRODUCTION}\n\n{text}\n\n{figure(found)}",
            where,
            page="accuracy",
        )


INTRODUCTION = (
    "Test NDCG@10 among all items under `clean`, in percent, with central noise at delta 1e-6 for each user (a user is "
    "there with her whole history or not at all); behind it what is left of the accuracy without noise and clipping, "
    "and of the same setting without noise. The setting is chosen on validation at each epsilon; that choice, and that "
    "of the round, is not covered by epsilon."
)


if __name__ == "__main__":
    main()
