"""Runs side by side: means over seeds, and differences to a baseline with paired intervals."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from statistics import fmean, stdev
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from federec.errors import UserError, did_you_mean, needs
from federec.evaluation.metrics import metric_of
from federec.reporting.frames import Frame, frame
from federec.reporting.labels import labels
from federec.reproduction.statistics import SEEDS, Difference, bootstrap
from federec.runs.folder import RunFolder
from federec.runs.ranks import contributions
from federec.runtimes.run import Run

METRICS = ("full.ndcg@10", "full.hr@10", "sampled.ndcg@10", "sampled.hr@10")

NOTE = (
    "Test, mean ± standard deviation over seeds; differences with paired 95 % intervals over users and the seeds that "
    f"both rows have. With fewer than {SEEDS} common seeds, a verdict is about these trained models: with other seeds "
    "their methods may come out otherwise."
)
"""What the figures of a comparison are."""

Runs = Run | str | Path | Iterable[Run | str | Path]
"""Runs, or folders of runs."""


class Group(NamedTuple):
    """What runs must have in common to be compared with each other."""

    data: str
    counts: tuple[str, ...]
    """Users, items, interactions: another filter gives other data."""
    split: str
    protocol: str

    @staticmethod
    def of(label: tuple[str, ...], result: dict[str, Any]) -> Group:
        """The group of a run with that label of `labels`."""
        data, _, *counts = label
        split = result["data"].get("split") or result["config"].get("split") or "leave-one-out"
        return Group(data, tuple(counts), split, result["protocol"])


@dataclass(frozen=True)
class Row:
    """Runs that differ only by seed."""

    label: str
    group: Group
    made: str
    """The method, with the settings in which the compared runs of it differ."""
    results: dict[int, dict[str, Any]] = field(repr=False)
    """`result.json` by seed."""
    ranks: dict[int, dict[str, Tensor]] = field(repr=False)
    """The ranks of each user by seed; a federation's runs have none."""

    def values(self, metric: str) -> list[float]:
        """The test metric of every seed, where it is known."""
        ranking, name = metric_of(metric)
        values = [result["test"][ranking].get(name) for result in self.results.values()]
        return [value for value in values if value is not None]

    def gains(self, metric: str) -> dict[int, NDArray[np.float64]]:
        """What each user contributes to the metric, by seed."""
        ranking, name = metric_of(metric)
        return {seed: contributions(ranks, ranking)[name].numpy() for seed, ranks in self.ranks.items()}

    def interval(self, metric: str) -> Difference:
        """The mean over users and seeds with its 95 % interval."""
        return bootstrap([_known(gains) for gains in self.gains(metric).values()])

    def common(self, other: Row) -> list[int]:
        """The seeds of which the users' ranks are known in both rows."""
        return sorted(self.ranks.keys() & other.ranks.keys())

    def against(self, other: Row, metric: str) -> Difference | str:
        """By how much it is better than another row, over the seeds that both have; or why that cannot be said."""
        if not self.ranks or not other.ranks:
            return "not paired: only sums over users are known"
        mine, others, both = self.gains(metric), other.gains(metric), self.common(other)
        if not both:
            return "not paired: no seed in common"
        if not all(_same_users(self.ranks[seed], other.ranks[seed]) for seed in both):
            return "not paired: other users were evaluated"
        return bootstrap([_known(mine[seed] - others[seed]) for seed in both])


def _known(gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """Without users of whom nothing is held out for test."""
    return gains[~np.isnan(gains)]


def _same_users(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether two runs evaluated the same users, as far as that is known: runs of older versions do not say whom."""
    if "users" in a and "users" in b:
        return a["users"].tolist() == b["users"].tolist()
    return a["test sampled"].shape == b["test sampled"].shape


@dataclass(frozen=True)
class Comparison:
    """Runs side by side, as `fr.compare` gives it. It prints as a table; `frame()`, `csv()`, `latex()` and `json()`
    give it to other programs, `plot()` draws it.

    >>> fr.compare([run], metric="full.hr@10").metric
    'full.hr@10'
    """

    rows: tuple[Row, ...]
    metric: str
    """The metric whose differences are given."""
    baseline: str | None = None
    """The label of the row that others are compared with; None: the first row with the same data, split and
    protocol."""

    def records(self) -> list[dict[str, Any]]:
        """One record a row: label, data, split, protocol, number of seeds, the mean and standard deviation over these
        seeds of every metric, and the difference to the baseline with its 95 % interval and what it says. The
        difference is over the seeds that both rows have, `common_seeds`: where these are fewer, it is not the
        difference of the means.

        >>> fr.compare([run]).records()[0]["verdict"]
        'baseline'
        """
        return [dict(record) for record in self._records]

    @cached_property
    def _records(self) -> list[dict[str, Any]]:
        return [self._record(row) for row in self.rows]

    def _record(self, row: Row) -> dict[str, Any]:
        found: dict[str, Any] = {"method": row.label, "data": row.group.data, "split": row.group.split}
        found |= {"protocol": row.group.protocol, "seeds": len(row.results)}
        for metric in dict.fromkeys((*METRICS, self.metric)):
            values = row.values(metric)
            found[metric] = fmean(values) if values else None
            found[f"{metric} std"] = stdev(values) if len(values) > 1 else None
        difference, verdict = self._against_baseline(row)
        mean, low, high = difference or (None, None, None)
        other = self._baseline_of(row)
        common = len(row.common(other)) if difference and other else None
        return found | {"common_seeds": common, "difference": mean, "low": low, "high": high, "verdict": verdict}

    def _against_baseline(self, row: Row) -> tuple[Difference | None, str]:
        """The difference to the baseline, where there is one, and the verdict in words."""
        other = self._baseline_of(row)
        if other is None:
            return None, "not compared: the baseline has other data, another split or another protocol"
        if other is row:
            return None, "baseline"
        found = row.against(other, self.metric)
        return (None, found) if isinstance(found, str) else (found, found.verdict(len(row.common(other))))

    def _baseline_of(self, row: Row) -> Row | None:
        """The row of the same group that this one is compared with."""
        alike = [other for other in self.rows if other.group == row.group]
        named = [other for other in alike if self.baseline in (None, other.label)]
        return named[0] if named else None

    def frame(self) -> Frame:
        """The records as a frame: of pandas where that is imported, of polars otherwise.

        >>> fr.compare([run]).frame()["seeds"][0]
        1
        """
        records = self.records()
        return frame({key: [record[key] for record in records] for key in records[0]})

    def csv(self) -> str:
        """The records as CSV.

        >>> fr.compare([run]).csv().splitlines()[0].split(",")[:3]
        ['method', 'data', 'split']
        """
        records, text = self.records(), io.StringIO()
        writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return text.getvalue()

    def json(self) -> str:
        """The records as JSON.

        >>> import json
        >>> json.loads(fr.compare([run]).json())["metric"]
        'full.ndcg@10'
        """
        text = {"metric": self.metric, "baseline": self.baseline, "rows": self.records()}
        return json.dumps(text, indent=2, ensure_ascii=False)

    def latex(self) -> str:
        r"""The table for LaTeX, with `\usepackage{booktabs}`.

        >>> print(fr.compare([run]).latex().splitlines()[0])
        \begin{tabular}{lllrrrrrrl}
        """
        heads, rows = self.cells()
        lines = [r"\begin{tabular}{lllrrrrrrl}", r"\toprule", " & ".join(map(_tex, heads)) + r" \\", r"\midrule"]
        lines += [" & ".join(map(_tex, row)) + r" \\" for row in rows]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def plot(self, axes: Any = None) -> Any:
        """The mean of every row with its 95 % interval over users and seeds, on matplotlib's axes: new ones, unless
        given. Needs the extra `results`.

        >>> fr.compare([run]).plot().get_xlabel()
        'full.ndcg@10 on test'
        """
        pyplot = needs("matplotlib.pyplot")
        if axes is None:
            axes = pyplot.subplots(figsize=(6, 0.8 + 0.35 * len(self.rows)), layout="constrained")[1]
        for height, row in enumerate(reversed(self.rows)):
            if row.ranks:
                mean, low, high = row.interval(self.metric)
                axes.errorbar(mean, height, xerr=[[mean - low], [high - mean]], fmt="o", capsize=3, color="C0")
            else:
                axes.plot(fmean(row.values(self.metric)), height, "o", color="C0")
        axes.set_yticks(range(len(self.rows)), [self._name(row) for row in reversed(self.rows)])
        axes.margins(y=0.2)
        axes.set_xlabel(f"{self.metric} on test")
        axes.grid(axis="x", alpha=0.3)
        return axes

    def _name(self, row: Row) -> str:
        """The label, with what else tells the row apart."""
        words = ("data", "split", "protocol")
        differing = [key for key in words if len({getattr(each.group, key) for each in self.rows}) > 1]
        return ", ".join([row.label, *(getattr(row.group, key) for key in differing)])

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """The table as people read it: its heads, and a list of texts for each row.

        >>> fr.compare([run]).cells()[0][:4]
        ['method', 'data', 'protocol', 'seeds']
        """
        heads = ["method", "data", "protocol", "seeds", *(metric.replace(".", " ") for metric in METRICS)]
        heads += [f"difference in {self.metric}", "verdict"]
        shown = []
        for row, record in zip(self.rows, self.records(), strict=True):
            cells = [record["method"], f"{record['data']}, {record['split']}", record["protocol"], str(record["seeds"])]
            cells += [_spread(record[metric], record[f"{metric} std"]) for metric in METRICS]
            known = record["difference"] is not None
            between = "{difference:+.4f} [{low:+.4f}, {high:+.4f}]".format_map(record) if known else ""
            other = self._baseline_of(row)
            if known and other and record["common_seeds"] < max(len(row.results), len(other.results)):
                between += f" (common seeds: {record['common_seeds']})"
            shown.append([*cells, between, record["verdict"]])
        return heads, shown

    def __repr__(self) -> str:
        heads, rows = self.cells()
        table = [heads, *rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(heads))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        return "\n".join([*(line.rstrip() for line in lines), *wrap(NOTE, 100)])

    def _repr_html_(self) -> str:
        heads, rows = self.cells()
        head = "".join(f"<th style='text-align:left'>{escape(text)}</th>" for text in heads)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{NOTE}</p>"


def compare(
    runs: Runs | Mapping[str, Runs], baseline: Run | str | Path | None = None, metric: str = "full.ndcg@10"
) -> Comparison:
    """Runs side by side. `runs` are runs, folders of runs, or a mapping from labels to these. Runs that differ only by
    seed are one row. Each row is compared with `baseline`, by default the first one: paired user by user and seed by
    seed, and only within the same data, split and protocol. A baseline is one of the runs or folders, or a row's label.

    >>> other = fr.train("popularity", data)
    >>> print(fr.compare({"fedmf": run, "most popular": other}).frame()["method"][1])
    most popular
    """
    metric_of(metric)
    if isinstance(runs, Mapping):
        given = [(str(name), run) for name, some in runs.items() for run in _each(some)]
    else:
        given = [("", run) for run in _each(runs)]
    if not given:
        raise UserError("there is no run to compare; give runs, or folders that `federec train` wrote")
    read = [_read(run) for _, run in given]
    rows: dict[tuple[str, Group], Row] = {}
    for (name, run), (result, ranks), label in zip(given, read, labels([result for result, _ in read]), strict=True):
        group = Group.of(label, result)
        row = rows.setdefault((name or label[1], group), Row(name or label[1], group, label[1], {}, {}))
        if row.made != label[1]:
            raise UserError(f"the runs of '{name}' differ in more than the seed: {row.made}; {label[1]}")
        row.results[result["seed"]] = result  # two runs with the same seed are the same run
        if ranks:
            row.ranks[result["seed"]] = ranks
        if baseline is run or str(baseline) == str(run):
            baseline = row.label
    known = [row.label for row in rows.values()]
    if baseline is not None and baseline not in known:
        raise UserError(f"no compared run is '{baseline!s:.80}'{did_you_mean(str(baseline), known)}")
    return Comparison(tuple(rows.values()), metric, None if baseline is None else str(baseline))


def _each(runs: Runs) -> list[Run | str | Path]:
    return list(runs) if isinstance(runs, Iterable) and not isinstance(runs, str) else [runs]


def _read(run: Run | str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The result of a run and the ranks of its users, where these are known."""
    if isinstance(run, Run):
        return run.result, run.ranks
    if not isinstance(run, str | Path):
        raise UserError(f"{run!r:.80} is no run; give what `fr.train` gave back, or the folder of a run")
    folder = RunFolder(run)
    return folder.result(), {} if folder.federated else folder.ranks()


def _spread(mean: float | None, std: float | None) -> str:
    if mean is None:
        return ""
    return f"{mean:.4f}" + (f" ± {std:.4f}" if std is not None else "")


def _tex(text: str) -> str:
    for special in "\\&%$#_{}":
        text = text.replace(special, rf"\{special}" if special != "\\" else "/")
    return text.replace("±", r"$\pm$")
