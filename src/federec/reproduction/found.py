"""The finished runs that pages are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from federec.errors import UserError
from federec.reproduction.cells import Cell
from federec.reproduction.records import Book, unpack
from federec.reproduction.statistics import gains

DECIDING = ("tuned", "clean", "paper")
"""Kinds of cells, those first that decide."""
DECIDES = "full", "ndcg@10"
"""The ranking and the metric of test by which claims are judged."""


@dataclass
class Finished:
    """The finished runs of one row on one data set, of one kind."""

    results: list[dict[str, Any]] = field(default_factory=list)
    ranks: list[dict[str, NDArray[np.int64]]] = field(default_factory=list)
    """Of each run, each user's rank of the test item among all items: `full`, and `fresh full` for methods that read
    histories."""
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

    def mean_minus(self, other: Finished, ranking: str, metric: str) -> float:
        """By how many points the metric is larger, in the mean over common seeds."""
        ours, theirs = (
            fmean(group.values(ranking, metric)[group.seeds.index(seed)] for seed in self.common(other))
            for group in (self, other)
        )
        return ours - theirs


Key = tuple[str, str, str]
"""Row label, data, kind."""
Found = dict[Key, Finished]


def collect(cells: Iterable[Cell], book: Book, may_be_none: bool = False) -> Found:
    """Finished runs by row, data and kind. Refuses if there is none, so that an empty page replaces no other, unless
    there `may_be_none`."""
    found: Found = {}
    for cell in cells:
        line = book.run(cell)
        if line is None:
            continue
        group = found.setdefault((cell.row.label, cell.data, cell.kind), Finished())
        group.results.append(line)
        group.ranks.append({name: unpack(text) for name, text in line["ranks"].items()})
        group.search = book.search(cell.row, cell.data) if cell.kind == "tuned" else None
    if not found and not may_be_none:
        raise UserError(f"{book.path}: holds no finished run for this page; run some first, or name another --out")
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
