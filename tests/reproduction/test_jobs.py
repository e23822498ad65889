"""Work in processes: what is left to do, what is kept, what a failure does to the rest."""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from federec.data.sets import load
from federec.reproduction.budget import Search
from federec.reproduction.cells import Cell, Row
from federec.reproduction.jobs import jobs_of, run_jobs
from federec.reproduction.records import Book

POPULAR, FEDMF = Row("popularity", "popularity", federated=False), Row("fedmf", "fedmf", settings={"dim": 4})


def test_a_job_is_what_is_left_of_a_row(ratings, tmp_path):
    book, data = Book(tmp_path / "records"), str(ratings)
    cells = [
        Cell(row, data, kind, seed, 1) for row in (POPULAR, FEDMF) for kind in ("clean", "tuned") for seed in (0, 1)
    ]
    jobs = jobs_of(cells, book, 7, "cpu")
    assert [(job.row.label, job.kind, job.seeds, job.trials) for job in jobs] == [
        ("popularity", "clean", (0, 1), 0),
        ("popularity", "tuned", (0, 1), 7),
        ("fedmf", "clean", (0, 1), 0),
        ("fedmf", "tuned", (0, 1), 7),
    ]
    lines = jobs[0].work()
    book.add(next(lines))
    book.add({"row": "fedmf", "data": data, "line": "trial", "params": {"lr": 0.2}})
    left = jobs_of(cells, book, 7, "cpu")
    assert left[0].seeds == (1,) and [trial["params"] for trial in left[3].before] == [{"lr": 0.2}]
    space = Search.of(FEDMF, data, load(data), 1).space
    found = {"line": "search", "best": {"lr": 0.5}, "trials": 7, "rounds": 1, "space": space}
    book.add({"row": "fedmf", "data": data, **found})
    (tuned,) = [job for job in jobs_of(cells, book, 7, "cpu") if (job.row, job.kind) == (FEDMF, "tuned")]
    assert tuned.trials == 0 and tuned.best == {"lr": 0.5}
    told = [*tuned.work()]
    assert [line["config"]["settings"]["lr"] for line in told] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("other", "again"),
    [({}, False), ({"trials": 8}, False), ({"trials": 6}, True), ({"rounds": 2}, True), ({"space": {}}, True)],
)
def test_a_search_of_something_else_is_made_again(ratings, tmp_path, other, again):
    book, data = Book(tmp_path / "records"), str(ratings)
    found = {"best": {"lr": 0.5}, "trials": 7, "rounds": 1, "space": Search.of(FEDMF, data, load(data), 1).space}
    book.add({"row": "fedmf", "data": data, "line": "search", **found, **other})
    (job,) = jobs_of([Cell(FEDMF, data, "tuned", 0, 1)], book, 7, "cpu")
    assert (job.trials > 0) == again


def test_a_finished_search_counts_where_its_data_is_not(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDEREC_DATA", raising=False)
    monkeypatch.setenv("FEDEREC_CACHE", str(tmp_path))
    book = Book(tmp_path / "records")
    book.add({"row": "fedmf", "data": "ml-1m", "line": "search", "best": {"lr": 0.5}, "trials": 7, "space": {}})
    (job,) = jobs_of([Cell(FEDMF, "ml-1m", "tuned", 0, 1)], book, 7, "cpu")
    assert job.trials == 0 and job.best == {"lr": 0.5}


@pytest.mark.thorough
def test_processes_do_the_jobs_once_and_a_failure_is_named(ratings, tmp_path):
    book, data, said = Book(tmp_path / "records"), str(ratings), []
    broken = Row("broken", "fedmf", settings={"dim": -1})
    cells = [Cell(POPULAR, data, "clean", 0, 1), Cell(FEDMF, data, "clean", 0, 1)]
    todo = jobs_of(cells, book, 1, "cpu")
    wrong = todo[0].__class__(**{**todo[0].__dict__, "row": broken})
    failed = run_jobs([wrong, *todo], book, 1, said.append)
    assert [job.row.label for job, _ in failed] == ["broken"] and "dim=-1" in failed[0][1]
    assert len(said) == 3 and any("FAILED" in line for line in said)
    assert jobs_of(cells, Book(book.path), 1, "cpu") == []  # what was done is on disk


@pytest.mark.thorough
def test_a_process_ends_with_the_one_that_asks(ratings, tmp_path):
    cells = [Cell(FEDMF, str(ratings), "clean", 0, rounds=1_000_000)]
    (endless,) = jobs_of(cells, Book(tmp_path / "records"), 1, "cpu")
    command = [sys.executable, "-m", "federec.reproduction.jobs"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(endless)) + "\n")
        process.stdin.close()
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()
