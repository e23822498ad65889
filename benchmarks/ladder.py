"""What fewer bytes cost: accuracy of FedNext against what a device sends and receives.

    python benchmarks/ladder.py [--data ml-100k] [--seeds 0 1 2] [--page]

Every row is a run under `clean`, its settings chosen on validation. Bytes are those of one device over the whole run.
They are counted as secure aggregation needs them: values for all items, whatever the device has. With `--page` the
section of docs/accuracy.md is written too.
"""

from __future__ import annotations

import argparse

from page import put, table

import federec as fr

HEAD = [
    "what devices send",
    "sent, MB",
    "at most in a round, MB",
    "received, MB",
    "NDCG@10",
    "fresh HR@10",
    "fresh NDCG@10",
]
TRIED = (30.0, 300.0)
"""Ridge penalties that projected runs try: with fewer rows less is to be held back."""


def rungs(dims: tuple[int, ...]) -> dict[str, fr.FedNext | fr.FedNextProjected | fr.FedEASE]:
    """The methods, from most bytes to fewest."""
    found: dict[str, fr.FedNext | fr.FedNextProjected | fr.FedEASE] = {
        "three half-lives, EASE beside": fr.FedNext(),
        "the same in ten blocks": fr.FedNext(blocks=10),
        "three half-lives": fr.FedNext(blend=(0.0,)),
        "one half-life of 4": fr.FedNext(half_lives=((4.0,),), blend=(0.0,)),
        "`fedease`, recency 4": fr.FedEASE(l2=(400.0,), recency=(4.0,), floor=0.1),
    }
    for dim in dims:
        found[f"learned rows of {dim}"] = fr.FedNextProjected(dim=dim, l2=TRIED)
        found[f"random rows of {dim}"] = fr.FedNextProjected(dim=dim, l2=TRIED, sweeps=0)
    return found


def rung(label: str, method: fr.DeviceMethod, data: fr.Interactions, seeds: list[int]) -> list[str]:
    """A row of the table: means over the seeds."""
    runs = [fr.train(method, data, seed=seed) for seed in seeds]
    sent = [[line["up_bytes"] for line in run.history] for run in runs]
    received = [sum(line["down_bytes"] for line in run.history) for run in runs]
    bytes_ = [_mean([sum(one) for one in sent]), max(map(max, sent)), _mean(received)]
    fresh = [run.result["test"]["fresh"]["full"] for run in runs]
    accuracy = [_mean([run.test["full"]["ndcg@10"] for run in runs])]
    accuracy += [_mean([metrics[name] for metrics in fresh]) for name in ("hr@10", "ndcg@10")]
    return [label, *(f"{value / 1e6:,.2f}" for value in bytes_), *(f"{value:.4f}" for value in accuracy)]


def ladder(data: fr.Interactions, seeds: list[int], dims: tuple[int, ...] = (256, 64, 16)) -> str:
    """The section of the page."""
    rows = []
    for label, method in rungs(dims).items():
        rows.append(rung(label, method, data, seeds))
        print(*rows[-1], sep="  ", flush=True)
    numbers = ", ".join(map(str, seeds))
    text = f"{data.name}, {data.n_items:,} items, `clean`, test items among all items; mean of seeds {numbers}. "
    text += "Fresh: the device also knows its validation item when it ranks. Bytes are those of one device over the "
    text += "whole run, as secure aggregation needs them."
    return text + "\n\n" + table(HEAD, rows)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    text = ladder(fr.load(asked.data), asked.seeds)
    print(text)
    if asked.page:
        put("ladder", "Accuracy against bytes", text, page="accuracy")


if __name__ == "__main__":
    main()
