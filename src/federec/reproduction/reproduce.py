"""Published tables, measured again: run what is not finished, write the pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from federec.errors import UserError, needs, several, whole
from federec.files import as_path
from federec.reproduction.budget import TRIALS
from federec.reproduction.cells import SEEDS, Cell
from federec.reproduction.grids import GRIDS, Grid, grid, kinds_of
from federec.reproduction.jobs import jobs_of, run_jobs
from federec.reproduction.records import Book, at_work


class Reproduced(NamedTuple):
    """What `fr.reproduce` made.

    >>> fr.reproduce("pfedrec-table9")
    Traceback (most recent call last):
    federec.errors.UserError: unknown table 'pfedrec-table9' - did you mean 'pfedrec-table4'?
    """

    pages: list[Path]
    """The results pages, in Markdown; CSVs and figures are beside them, and `records` has what they are made of."""
    failed: list[str]
    """A line about each row that failed."""


def reproduce(
    table: str,
    *,
    data: str | Sequence[str] = (),
    tuned: bool = False,
    trials: int = TRIALS,
    seeds: int = 5,
    jobs: int = 1,
    rounds: int | None = None,
    only: str | Sequence[str] = (),
    device: str = "cpu",
    out: str | Path = "results",
    page_only: bool = False,
    say: Callable[[str], None] = print,
) -> Reproduced:
    """Run a published table under both protocols and write its results page: `pfedrec-table2`, `pfedrec-table3`,
    `pfedrec-table4`, `fedrap`, `plgc`, `fedrecgel`; `tuned`, every method with one budget of tuning; `summary`, what is
    left of the papers' claims after tuning; `figures`, those of the papers; or `all` of these.

    `data` and `only` choose data sets and rows, by default all. With `tuned`, methods are also run with settings that
    are searched on validation, `trials` of them for every method. There are at most `seeds` runs of a cell: fewer with
    the papers' settings, of which no verdict is made. What is finished is kept line by line in `out/records`; the same
    call continues where it was stopped. `jobs` runs so many at a time, each in a process of its own. Figures go to the
    folder `figures` beside `out`; with `page_only` they are drawn from the CSVs there. Needs the extra `results`.

    >>> found = fr.reproduce("fedrap", data="tastes", only="popularity", seeds=1, say=lambda line: None)
    >>> [page.name for page in found.pages]
    ['fedrap.md']
    """
    needs("matplotlib")
    from federec.reproduction.drawings.make import make_all
    from federec.reproduction.pages import write_page
    from federec.reproduction.summary import write_summary

    out, seeds, jobs, trials = as_path(out), whole(seeds, "seeds"), whole(jobs, "jobs"), whole(trials, "trials")
    data = _texts(data, "data", "name data sets, such as ['ml-100k']")
    only = _texts(only, "only", "give words of the rows' names, such as ['fedmf']")
    records, failed = out / "records", list[str]()
    chosen = [] if table in ("summary", "figures") else [*GRIDS.values()] if table == "all" else [grid(table)]
    cells = {one.name: cells_of(one, data, seeds, rounds, only) for one in chosen}
    if chosen and not any(cells.values()):
        rows = ", ".join(dict.fromkeys(row.label for one in chosen for row in one.rows))
        raise UserError(f"no row of {table} has '{' or '.join(only)}' in its name; its rows: {rows}")
    if chosen and not page_only:
        all_ = dict.fromkeys(cell for some in cells.values() for cell in some)
        asked = [cell for cell in all_ if tuned or table == "tuned" or cell.kind != "tuned"]
        with at_work(records) as book:
            todo = jobs_of(asked, book, trials, device)
            if todo:
                book.tidy()
                runs, searches = sum(len(job.seeds) for job in todo), sum(job.trials > 0 for job in todo)
                say(f"{runs} runs and {searches} searches to do")
                failed = [f"{job.words}: {words}" for job, words in run_jobs(todo, book, jobs, say)]
                book.tidy()
    book = Book(records)
    options = [word for name in data for word in ("--data", name)] + [word for row in only for word in ("--only", row)]
    options += [] if rounds is None else ["--rounds", str(rounds)]
    pages = [
        write_page(one, cells[one.name], book, out, options)
        for one in chosen
        if table != "all" or any(book.run(cell) for cell in cells[one.name])
    ]
    if table in ("all", "summary"):
        pages.append(write_summary(book, out, data))
    if table in ("all", "figures") and not only:
        pages += make_all(out.parent / "figures", data, rounds, page_only, say)
    return Reproduced(pages, failed)


def _texts(given: str | Sequence[str], name: str, remedy: str) -> list[str]:
    texts = several(given, name, remedy, str)
    for text in texts:
        if not isinstance(text, str):
            raise UserError(f"{name}={text!r:.80}: {remedy}")
    return texts


def cells_of(chosen: Grid, data: Sequence[str], seeds: int, rounds: int | None, only: Sequence[str]) -> list[Cell]:
    """The cells of a table, each checked: a wrong one is refused before any runs."""
    cells = [
        Cell(row, name, kind, seed, rounds)
        for name in data or chosen.data
        for row in chosen.rows
        if not only or any(word in row.label for word in only)
        for kind in kinds_of(row, name)
        if kind in chosen.kinds
        for seed in range(min(seeds, SEEDS[kind]))
    ]
    for cell in cells:
        cell.config()
    return cells
