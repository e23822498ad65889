"""Attacks and defences: exposure of promoted items and accuracy on ML-100K, by attack, aggregator and fraction.

    python benchmarks/poisoning.py                # runs what is missing of docs/robustness.jsonl, then writes the page
    python benchmarks/poisoning.py --page-only    # only writes the tables and the figure of docs/robustness.md

One thread; FedMF of width 16, protocol clean, full ranking. Each line of the file is one run, so an interrupted
benchmark goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from page import DOCS, table

PAGE, FILE = DOCS / "robustness.md", DOCS / "robustness.jsonl"
SEEDS = (0, 1, 2, 3, 4, 5, 6, 7)
LONG, SHORT = 60, 20
"""Rounds of the runs that are repeated with all seeds, and of all others."""
FACED = {"mean": (0.0, 0.05), "foolsgold": (0.05,), "item-clip:norm=10": (0.05,)}
"""Aggregators of those runs, and the fractions of attackers that each faces."""
DEFENCES = (
    *("mean", "norm-bound", "item-clip:norm=10", "item-clip", "participants", "trimmed-mean:fraction=0.2", "median"),
    *("geometric-median", "krum", "multi-krum", "foolsgold"),
)
ATTACKS = (
    *("random", "label-flip", "promote", "promote:disguise=0.5", "pipattack", "pipattack:popularity=false"),
    *("fedrecattack", "fedattack", "clusterattack"),
)
FRACTIONS = (0.001, 0.01, 0.05, 0.2)
SHOWN = ("mean", "item-clip:norm=10", "foolsgold")
"""Aggregators that face all attacks."""
LINES = (("promote:strength=0.1", "mean"), *(("promote", aggregator) for aggregator in SHOWN))
"""Attacks and aggregators that are measured with all fractions."""

Job = dict[str, Any]


def jobs() -> Iterator[Job]:
    """All runs, the most important first."""

    def job(attack: str, fraction: float, aggregator: str, seed: int = 0, rounds: int = SHORT) -> Job:
        return {"attack": attack, "fraction": fraction, "aggregator": aggregator, "seed": seed, "rounds": rounds}

    for aggregator in FACED:
        for seed in SEEDS:
            for fraction in FACED[aggregator]:
                yield job("promote", fraction, aggregator, seed, LONG)
    yield job("promote", 0.0, "mean")
    for aggregator in DEFENCES:
        yield job("promote", 0.05, aggregator)
    for attack in ATTACKS:
        for aggregator in SHOWN:
            yield job(attack, 0.05, aggregator)
    for attack, aggregator in LINES:
        for fraction in FRACTIONS:
            yield job(attack, fraction, aggregator)


def play(job: Job) -> Job:
    """The run of a job, as one line."""
    import federec as fr

    name, _, more = job["attack"].partition(":")
    attack = f"{name}:" + ",".join(filter(None, [f"fraction={job['fraction']}", more]))
    began = time.process_time()
    run = fr.train(
        fr.FedMF(dim=16),
        fr.load("ml-100k"),
        rounds=job["rounds"],
        seed=job["seed"],
        attack=attack,
        aggregator=job["aggregator"],
        engine="torch",
        progress=False,
    )
    found = {key: run.result["attack"][key] for key in ("attackers", "targets", "exposure", "cold_exposure", "honest")}
    sampled = run.test["sampled"]["hr@10"]
    seconds = time.process_time() - began
    return {**job, **found, "sampled_hr@10": sampled, "round": run.result["best_round"], "seconds": seconds}


def key(job: Job) -> tuple[Any, ...]:
    return tuple(job[name] for name in ("attack", "fraction", "aggregator", "seed", "rounds"))


def known() -> dict[tuple[Any, ...], Job]:
    lines = FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else []
    return {key(job): job for job in map(json.loads, lines)}


def er(job: Job) -> float:
    """ER@10 of the target, in percent."""
    return 100 * float(job["exposure"]["er@10"])


def hr(job: Job) -> float:
    """HR@10 of honest users against all items, in percent."""
    return 100 * float(job["honest"]["hr@10"])


def mean(jobs: list[Job], of: Callable[[Job], float]) -> float:
    return float(np.mean([of(job) for job in jobs]))


def claim(found: dict[tuple[Any, ...], Job]) -> str:
    """Attack and defence over several seeds."""

    def some(fraction: float, aggregator: str) -> list[Job]:
        return [found["promote", fraction, aggregator, seed, LONG] for seed in SEEDS]

    clean = some(0.0, "mean")
    cold = mean(clean, lambda job: 100 * job["cold_exposure"]["er@10"])

    def change(mine: list[Job]) -> str:
        points = np.array([hr(job) - hr(without) for job, without in zip(mine, clean, strict=True)])
        return f"{points.mean():+.2f} ± {points.std(ddof=1) / len(points) ** 0.5:.2f}" if points.any() else "+0.00"

    rows = []
    for aggregator in FACED:
        for fraction in FACED[aggregator]:
            mine = some(fraction, aggregator)
            rows.append(
                [
                    f"`{aggregator}`",
                    f"{fraction:.0%}",
                    f"{mean(mine, er):.3f}",
                    f"{mean(mine, er) / cold:,.1f}",
                    f"{mean(mine, hr):.2f}",
                    change(mine),
                    f"{mean(mine, lambda job: 100 * job['sampled_hr@10']):.1f}",
                    f"{mean(mine, lambda job: job['seconds']):.0f}",
                ]
            )
    verdicts = [
        f"{mean(some(0.05, aggregator), er) / cold:,.0f} times with `{aggregator}` (HR@10 "
        f"{mean(some(0.05, aggregator), hr) - mean(clean, hr):+.1f} points)"
        for aggregator in FACED
    ]
    head = ["aggregator", "attackers", "ER@10 %", "times clean", "HR@10 %", "change", "HR@10 % sampled", "CPU s"]
    targets = ", ".join(str(job["targets"][0]) for job in clean)
    counts = " or ".join(str(count) for count in sorted({job["attackers"] for job in some(0.05, "mean")}))
    text = (
        f"Means over {len(SEEDS)} seeds, {LONG} rounds; the targets are items {targets}, the attackers {counts} of 943 "
        f"devices. The clean value is {cold:.4f}%: the ER@10 of all {1682 // 2} items that the target can be "
        "drawn from, pooled, without attackers. A single cold item's own clean value is nearly always zero, so "
        "that no ratio to it could be formed. *Change* is the HR@10 of honest users in points, against the same "
        "seed without attackers, with its standard error over seeds."
    )
    return (
        f"**ER@10 under attack, in units of the clean value:** {', '.join(verdicts)}.\n\n{text}\n\n{table(head, rows)}"
    )


def grid(found: dict[tuple[Any, ...], Job]) -> str:
    """All attacks against four aggregators, and all aggregators against promotion."""
    clean = found["promote", 0.0, "mean", 0, SHORT]
    head = ["attack", *(f"`{aggregator}`" for aggregator in SHOWN)]
    rows = [["nobody", f"{er(clean):.2f} / {hr(clean):.1f}", *["" for _ in SHOWN[1:]]]]
    for attack in ATTACKS:
        line = [found[attack, 0.05, aggregator, 0, SHORT] for aggregator in SHOWN]
        rows.append([f"`{attack}`", *(f"{er(job):.2f} / {hr(job):.1f}" for job in line)])
    every = []
    for aggregator in DEFENCES:
        job = found["promote", 0.05, aggregator, 0, SHORT]
        every.append([f"`{aggregator}`", f"{er(job):.2f}", f"{hr(job):.1f}", f"{job['seconds'] / SHORT:.2f}"])
    return (
        f"ER@10 of the target / HR@10 of honest users, both in percent; 5% attackers, seed 0, {SHORT} rounds:\n\n"
        f"{table(head, rows)}\n\nEvery aggregator against `promote`, in the same setting; CPU seconds are those of "
        f"a whole round, learning included:\n\n{table(['aggregator', 'ER@10 %', 'HR@10 %', 's a round'], every)}"
    )


def fractions(found: dict[tuple[Any, ...], Job]) -> str:
    """Exposure by the number of attackers, as a table and a figure."""
    from matplotlib.figure import Figure

    from federec.reproduction.figures import svg

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes, rows = figure.subplots(), []
    for (attack, aggregator), marker in zip(LINES, "vosD", strict=True):
        line = [found[attack, fraction, aggregator, 0, SHORT] for fraction in FRACTIONS]
        rows.append([f"`{attack}`", f"`{aggregator}`", *(f"{er(job):.2f} / {hr(job):.1f}" for job in line)])
        shares = [100 * fraction for fraction in FRACTIONS]
        axes.plot(shares, list(map(er, line)), marker=marker, label=f"{attack}, {aggregator}", alpha=0.8)
    axes.set(xscale="log", xlabel="attackers, % of the devices", ylabel="ER@10 of the target, %", ylim=(-4, 104))
    axes.set_xticks([100 * fraction for fraction in FRACTIONS], [f"{100 * fraction:g}" for fraction in FRACTIONS])
    axes.minorticks_off()
    figure.legend(loc="outside upper center", ncols=2, fontsize=8)
    (DOCS / "robustness.svg").write_text(svg(figure), encoding="utf-8")
    head = ["attack", "aggregator", *(f"{100 * fraction:g}%" for fraction in FRACTIONS)]
    return (
        f"ER@10 of the target / HR@10 of honest users in percent, by the fraction of attackers; seed 0, "
        f"{SHORT} rounds:\n\n{table(head, rows)}\n\n"
        "![Exposure of the promoted item by the fraction of attackers, one line for each aggregator](robustness.svg)"
    )


def write(found: dict[tuple[Any, ...], Job]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, text in (("claim", claim(found)), ("grid", grid(found)), ("fractions", fractions(found))):
        mark = re.compile(rf"<!-- {name} -->\n.*?<!-- end {name} -->\n", re.S)
        assert mark.search(page), f"{PAGE} has no marks for '{name}'"
        page = mark.sub(lambda _: f"<!-- {name} -->\n{text}\n<!-- end {name} -->\n", page)  # noqa: B023
    PAGE.write_text(page, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page-only", action="store_true", help="write the page from the runs that there are")
    if not parser.parse_args().page_only:
        import torch

        torch.set_num_threads(1)
        found = known()
        for job in jobs():
            if key(job) in found:
                continue
            found[key(job)] = play(job)
            with FILE.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found[key(job)]) + "\n")
            print(key(job), f"ER@10 {er(found[key(job)]):.3f}% HR@10 {hr(found[key(job)]):.2f}%", flush=True)
    write(known())


if __name__ == "__main__":
    main()
