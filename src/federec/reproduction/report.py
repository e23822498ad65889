"""The page that compares several finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from federec.reporting.comparison import Compared, html_comparison
from federec.reproduction.compare import NOTE, compare
from federec.runs.folder import RunFolder


def comparison_report(folders: Sequence[Path], baseline: Path | None = None, metric: str = "full.ndcg@10") -> str:
    """The page as HTML. Differences are to `baseline`, by default the first run of the same data, split and protocol,
    and in that metric."""
    comparison = compare(list(folders), baseline=baseline, metric=metric)
    runs: dict[tuple[str, str, int], Compared] = {}
    for folder in map(RunFolder, folders):
        result = folder.result()
        for row in comparison.rows:
            if row.results.get(result["seed"]) == result:
                group = f"{', '.join([row.group.data, row.group.split])}: {row.group.protocol}"
                found = Compared(row.label, group, result, folder.lines(result["rounds"]))
                runs[row.label, group, result["seed"]] = found  # a seed that comes twice counts once
    return html_comparison(*comparison.cells(), NOTE, list(runs.values()))
