"""A published table, measured again: run what is not finished, write the page."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from federec.errors import UserError, needs, several, whole
from federec.evaluation.protocols import PROTOCOLS
from federec.files import as_path
from federec.reproduction.cells import Cell, estimate, run_cells, unfinished
from federec.reproduction.grids import Grid, grid


class Reproduced(NamedTuple):
    """What `fr.reproduce` made.

    >>> fr.reproduce("pfedrec-table9")
    Traceback (most recent call last):
    federec.errors.UserError: unknown table 'pfedrec-table9' - did you mean 'pfedrec-table4'?
    """

    page: Path
    """The results page, in Markdown; a CSV and figures are beside it."""
    runs: list[Path]
    """Folders of the finished runs, for `fr.compare` and `fr.Run.load`."""
    failed: list[str]
    """A line about each run that failed."""


def reproduce(
    table: str,
    *,
    data: str | Sequence[str] = (),
    seeds: int = 5,
    jobs: int = 1,
    rounds: int | None = None,
    only: str | Sequence[str] = (),
    runs: str | Path = "runs/reproduce",
    out: str | Path = "results",
    page_only: bool = False,
    say: Callable[[str], None] = print,
) -> Reproduced:
    """Run a published table under both protocols and write its results page: `pfedrec-table2`, `pfedrec-table3`,
    `pfedrec-table4`, `fedrap`, `plgc`, `fedrecgel`; or `summary`, the claims of all tables from finished runs.

    `data` and `only` choose data sets and rows, by default all. Every run is kept under `runs`; the same call continues
    where it was stopped. `jobs` runs that many at a time, each in a process of its own. Needs the extra `results`.

    >>> found = fr.reproduce("fedrap", data="tastes", only="popularity", seeds=1, say=lambda line: None)
    >>> found.page.name, len(found.runs)
    ('fedrap.md', 2)
    """
    needs("matplotlib", "results")
    from federec.reproduction.pages import write_page
    from federec.reproduction.summary import write_summary

    runs, out, seeds, jobs = as_path(runs), as_path(out), whole(seeds, "seeds"), whole(jobs, "jobs")
    if table == "summary":
        return Reproduced(write_summary(seeds, runs, out), [], [])
    data = _texts(data, "data", "name data sets, such as ['ml-100k']")
    only = _texts(only, "only", "give words of the rows' names, such as ['fedmf']")
    chosen = grid(table)
    cells = cells_of(chosen, data, seeds, rounds, only)
    failures: list[tuple[Cell, str]] = []
    todo = [] if page_only else unfinished(cells, runs)
    if todo:
        minutes = estimate(cells, runs, say) / 60 / jobs
        say(f"{len(todo)} of {len(cells)} cells to run, about {minutes:.0f} minutes with {jobs} at the same time")
        failures = run_cells(cells, runs, jobs, say)
    names = [word for name in data for word in ("--data", name)]
    command = shlex.join(["federec", "reproduce", table, *names, "--seeds", str(seeds)])
    page = write_page(chosen, cells, runs, out, command)
    failed = [f"{cell.row.label} {cell.data} {cell.protocol} seed {cell.seed}: {words}" for cell, words in failures]
    return Reproduced(page, [cell.folder(runs).path for cell in cells if cell.finished(runs)], failed)


def _texts(given: str | Sequence[str], name: str, remedy: str) -> list[str]:
    texts = several(given, name, remedy, str)
    for text in texts:
        if not isinstance(text, str):
            raise UserError(f"{name}={text!r:.80}: {remedy}")
    return texts


def cells_of(chosen: Grid, data: Sequence[str], seeds: int, rounds: int | None, only: Sequence[str]) -> list[Cell]:
    """The cells of a table, each checked: a wrong one is refused before any runs."""
    cells = [
        Cell(row, name, protocol, seed, rounds)
        for name in data or chosen.data
        for seed in range(seeds)
        for row in chosen.rows
        if not only or any(word in row.label for word in only)
        for protocol in PROTOCOLS
    ]
    if not cells:
        rows = ", ".join(row.label for row in chosen.rows)
        raise UserError(f"no row of {chosen.name} has '{' or '.join(only)}' in its name; its rows: {rows}")
    for cell in cells:
        cell.config()
    return cells
