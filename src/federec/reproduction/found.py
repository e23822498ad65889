"""The finished runs that pages are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from federec.errors import UserError
from federec.reproduction.cells import Cell
from federec.reproduction.statistics import gains

KINDS = ("tuned", "clean", "paper")
"""Kinds of cells, those first that decide."""
DECIDES = "full", "ndcg@10"
"""The ranking and the metric of test by which claims are judged."""


@dataclass
class Finished:
    """The finished runs of one row on one data set, of one kind."""

    results: list[dict[str, Any]] = field(default_factory=list)
    ranks: list[dict[str, NDArray[np.int64]]] = field(default_factory=list)
    """Of each run, each user's rank of the test item: `full` and `sampled`; with fresh histories, for methods that read
    them, `fresh full` and `fresh sampled`."""
    search: dict[str, Any] | None = None
    """Of tuned runs: what was searched, and what was found."""

    @property
    def seeds(self) -> list[int]:
        return [result["seed"] for result in self.results]

    @property
    def commits(self) -> list[str]:
        """The commits that made the runs and chose their settings."""
        made = {result.get("commit", "") for result in self.results}
        return sorted((made | {(self.search or {}).get("commit", "")}) - {""})

    def values(self, ranking: str = DECIDES[0], metric: str = DECIDES[1]) -> list[float]:
        """The metric of every run in percent; empty if the runs have no such ranking."""
        *fresh, name = ranking.split()
        tests = [result["test"].get("fresh", {}) if fresh else result["test"] for result in self.results]
        return [100 * test[name][metric] for test in tests if name in test]

    def common(self, other: Finished) -> list[int]:
        """The seeds that both have. Runs of different seeds are not paired: the seed decides which of equally new items
        is held out, and what it is ranked against."""
        return sorted({*self.seeds} & {*other.seeds})

    def minus(self, other: Finished, ranking: str, metric: str) -> NDArray[np.float64]:
        """By how much each user's contribution to the metric is larger, [common seeds, users]."""
        ours, theirs = (
            np.stack([gains(group.ranks[group.seeds.index(seed)][ranking], metric) for seed in self.common(other)])
            for group in (self, other)
        )
        return ours - theirs


Key = tuple[str, str, str]
"""Row label, data, kind."""
Found = dict[Key, Finished]


def collect(cells: Sequence[Cell], runs: Path) -> Found:
    """Finished runs by row, data and kind. Refuses if there is none, so that an empty page replaces no other."""
    found: Found = {}
    for cell in cells:
        if not cell.finished(runs):
            continue
        folder = cell.folder(runs)
        group = found.setdefault((cell.row.label, cell.data, cell.kind), Finished())
        ranks = {name.removeprefix("test "): values.numpy() for name, values in folder.ranks().items()}
        result = folder.result()
        lines = folder.lines(result["rounds"]) if (folder.path / "rounds.jsonl").is_file() else []
        group.ranks.append(ranks)
        group.results.append({**result, "notes": lines})
    if not found:
        raise UserError(
            f"{runs}: holds no finished run for this page; run some first, or name their folder with --runs"
        )
    return found


def best(labels: Sequence[str], data: str, kind: str, found: Found, fresh: bool = False) -> tuple[str, float] | None:
    """The row with the best NDCG@10 against all items, and that figure in percent. With `fresh` histories, where the
    row reads them: rows that do not are the same with old and with fresh ones."""
    means: dict[str, float] = {}
    for label in labels:
        if group := found.get((label, data, kind)):
            means[label] = fmean((group.values("fresh full") if fresh else []) or group.values())
    if not means:
        return None
    label = max(means, key=lambda label: means[label])
    return label, means[label]
