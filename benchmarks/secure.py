"""What hiding costs: `python benchmarks/secure.py [--page]`.

Federations in one process, at their default settings: devices of one user each, that send only as part of a secure sum.

* 100 devices, the first 100 users of `tastes`: accuracy against the local run on the same users, bytes and seconds a
  round.
* 5 devices: a round under `secure-sum` against the same round in the clear, in turns.
* 1,000 devices (`tastes` with 1,000 users): one round, and how many messages it takes.

Seconds are those of all devices and the server together, on one core: devices learn one after the other.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from page import put, table

from federec.data.interactions import Interactions
from federec.data.sets import load
from federec.data.tastes import generate
from federec.network.catalogue import Catalogue
from federec.network.device_folder import share_out
from federec.network.exchange import Exchange
from federec.network.settings import EVENTS, FederationSettings, prepare
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder
from federec.runtimes.in_process import federation
from federec.runtimes.local import run as run_locally

TURNS = 3


def first(users: int, data: Interactions) -> Interactions:
    """The first users of a data set."""
    own = data.users < users
    columns = {name: getattr(data, name) for name in ("users", "items", "times", "ratings")}
    kept = {name: None if column is None else column[own] for name, column in columns.items()}
    return replace(data, **kept, user_ids=data.user_ids[:users], origin={})


def played(path: Path, data: Interactions, rounds: int, **values: Any) -> tuple[dict[str, Any], list[float]]:
    """A federation of one-user devices: its result, and the seconds of each round."""
    config = RunConfig.checked(method="pfedrec", data="tastes", rounds=rounds, **values)
    prepare(path, config, FederationSettings.checked(expected=data.n_users), Catalogue.of(data))
    share_out(path, data, data.n_users)
    result = federation(path)
    lines = map(json.loads, (path / "rounds.jsonl").read_text().splitlines())
    return result, [sum(line["seconds"].values()) for line in lines]


def hundred(path: Path, rounds: int) -> list[list[str]]:
    """The default federation against the local run on the same users."""
    data = first(100, load("tastes"))
    # Both rank 99 sampled items in every round, but all items in different ones, and would pick different rounds.
    select = "sampled.hr@10"
    result, seconds = played(path / "hundred", data, rounds, select=select)
    config = RunConfig.checked(method="pfedrec", data="tastes", rounds=rounds, select=select)
    local = run_locally(config, data, RunFolder(path / "local"))
    sent = result["communication"]
    return [
        ["100 devices: NDCG@10, all items", f"{result['test']['full']['ndcg@10']:.4f}"],
        ["local run: NDCG@10, all items", f"{local.test['full']['ndcg@10']:.4f}"],
        ["100 devices: HR@10, 99 negatives", f"{result['test']['sampled']['hr@10']:.4f}"],
        ["local run: HR@10, 99 negatives", f"{local.test['sampled']['hr@10']:.4f}"],
        ["100 devices: seconds a round", f"{median(seconds):.2f}"],
        ["kB up, per device and round", f"{sent['up_bytes_per_device_round'] / 1000:.0f}"],
        ["kB down, per device and round", f"{sent['down_bytes_per_device_round'] / 1000:.0f}"],
    ]


def five(path: Path) -> list[list[str]]:
    """A hidden round against one in the clear."""
    data, took = first(5, load("tastes")), {"clear": [], "hidden": []}  # type: dict[str, list[float]]
    for turn in range(TURNS):
        for name, how in (("clear", {"channel": ()}), ("hidden", {})):
            took[name] += played(path / f"{name}-{turn}", data, 8, **how)[1][1:]
    clear, hidden = (median(took[name]) for name in ("clear", "hidden"))
    return [
        ["5 devices: seconds a round, in the clear", f"{clear:.3f}"],
        ["hidden, times that", f"{hidden / clear:.2f}"],
    ]


def thousand(path: Path) -> list[list[str]]:
    """One round of a thousand devices."""
    data = generate(users=1000, interactions=100_000)
    _, seconds = played(path / "thousand", data, 1)
    lines = map(json.loads, (path / "thousand" / EVENTS).read_text().splitlines())
    asked = Counter(
        {line["kind"]: line["devices"] for line in lines if line["event"] == "asked" and line["round"] == 1}
    )
    legs = sum(count for kind, count in asked.items() if kind != "evaluate")
    return [["1,000 devices: seconds for a round", f"{seconds[0]:.1f}"], ["messages to devices in it", f"{legs:,}"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--page", action="store_true", help="put the figures into docs/benchmarks.md")
    parser.add_argument("--rounds", type=int, default=30, help="of the 100 devices")
    given = parser.parse_args()
    Exchange.poll = 0.01  # replies are there at once
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch)
        rows = [*five(path), *thousand(path), *hundred(path, given.rounds)]
    text = table(["default federation, in one process", ""], rows)
    print(text)
    if given.page:
        put("secure", "What hiding costs", text)


if __name__ == "__main__":
    main()
