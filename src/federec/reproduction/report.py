"""The page that compares several finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from federec.reporting.comparison import Compared, Same, html_comparison
from federec.reproduction.compare import NOTE, Group, compare
from federec.runs.record import RunRecord


def comparison_report(folders: Sequence[Path], baseline: Path | None = None, metric: str = "full.ndcg@10") -> str:
    """The page as HTML. Differences are to `baseline`, by default the first run of the same data, split and protocol,
    and in that metric."""
    comparison = compare(list(folders), baseline=baseline, metric=metric)
    heads, rows = comparison.cells()
    shown = [place for place, head in enumerate(heads) if head not in ("data", "protocol")]  # they are in the title
    told = [
        (_same(row.group), [cells[place] for place in shown]) for row, cells in zip(comparison.rows, rows, strict=True)
    ]
    runs: dict[tuple[str, Group, int], Compared] = {}
    for folder in map(RunRecord, folders):
        result = folder.result()
        for row in comparison.rows:
            if row.results.get(result["seed"]) == result:
                found = Compared(row.label, _same(row.group), result, folder.lines(result["rounds"]))
                runs[row.label, row.group, result["seed"]] = found  # a seed that comes twice counts once
    return html_comparison([heads[place] for place in shown], told, NOTE, list(runs.values()))


def _same(group: Group) -> Same:
    users, items, interactions = (f"{int(count):,}" for count in group.counts)
    about = f"{users} users, {items} items, {interactions} interactions; held out: {group.split}."
    return Same(f"{group.data}, protocol {group.protocol}", about)
