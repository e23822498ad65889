import csv
from dataclasses import replace

import numpy as np
import pytest

from federec.reproduction.cells import Cell, Row
from federec.reproduction.grids import Grid
from federec.reproduction.jobs import jobs_of
from federec.reproduction.pages import page_files, published, write_page
from federec.reproduction.records import Book

ROWS = (Row("fedmf", "fedmf", settings={"dim": 4}), Row("popularity", "popularity", federated=False))
GRID = Grid("trial", "A trial", "Two rows.", ROWS, ("set",), (("fedmf", "popularity"),))


@pytest.fixture
def book(tmp_path, ratings):
    """Records of two rows on a small file, with two seeds under both protocols."""
    book = Book(tmp_path / "records")
    for job in jobs_of(_cells(str(ratings)), book, 1, "cpu"):
        for line in job.work():
            book.add(line)
    return book


def _cells(data):
    return [Cell(row, data, kind, seed, 2) for row in ROWS for kind in ("clean", "paper") for seed in (0, 1)]


def test_the_page_holds_the_figures_of_the_records(book, ratings, tmp_path):
    cells, grid = _cells(str(ratings)), replace(GRID, data=(str(ratings),))
    text = write_page(grid, cells, book, tmp_path / "out", "federec reproduce trial").read_text()
    tests = [book.run(cell)["test"] for cell in cells[:2]]
    full, hits = (100 * np.mean([t[k][m] for t in tests]) for k, m in (("full", "ndcg@10"), ("sampled", "hr@10")))
    assert f"{full:.2f}\u00a0±" in text and "fedmf against popularity" in text and "best federated method" in text
    with (tmp_path / "out" / "trial.csv").open() as file:
        rows = [
            r for r in csv.DictReader(file) if (r["method"], r["kind"], r["ranking"]) == ("fedmf", "clean", "sampled")
        ]
    mean = {row["metric"]: float(row["mean_percent"]) for row in rows}["hr@10"]
    assert mean == pytest.approx(hits, abs=1e-4) and rows[0]["seeds"] == "2"
    assert list((tmp_path / "out").glob("*.svg"))


def test_published_figures_are_those_of_the_paper():
    table = published("pfedrec-table2")
    assert table["pfedrec", "ml-1m", "hr@10"] == 73.26 and table["fedmf", "ml-100k", "ndcg@10"] == 39.38


def test_a_published_figure_that_was_missed_is_named(finished, monkeypatch):
    found, printed = {("popularity", "set", "paper"): finished()}, {("popularity", "set", "hr@10"): 200.0}
    monkeypatch.setattr("federec.reproduction.pages.published", lambda table: printed)
    assert "Further than 2 points" in page(found) and "- popularity reaches " in page(found)
    assert "points below the published 200.0. Only the default settings were tried." in page(found)
    printed["popularity", "set", "hr@10"] = np.mean(found["popularity", "set", "paper"].values("sampled", "hr@10"))
    assert "Further than" not in page(found)


def test_a_claim_is_judged_by_full_ranking_of_tuned_cells(finished):
    """Where rankings disagree, the one against all items counts; where settings do, the tuned ones."""
    tuned = {row.label: finished(places) for row, places in zip(ROWS, (6, 0), strict=True)}
    for group, places in zip(tuned.values(), (0, 6), strict=True):
        for own in group.ranks:
            own["sampled"] = np.maximum(own["sampled"] - places, 0)
    found = {(label, "set", "tuned"): group for label, group in tuned.items()}
    found |= {("fedmf", "set", "clean"): finished(0), ("popularity", "set", "clean"): finished(9)}
    assert "| fedmf against popularity | better | < 0.001 | +" in page(found)
    assert "fedmf is better than popularity (+" in page(found)
    untuned = {key: group for key, group in found.items() if key[2] == "clean"}
    assert "| fedmf against popularity | worse | < 0.001 | -" in page(untuned) and "No row was tuned." in page(untuned)


def page(found, grid=GRID, file="trial.md"):
    return page_files(grid, ["set"], found, "federec reproduce trial")[file]


def test_what_decides_comes_first_and_fresh_histories_have_a_column_where_known(finished, search):
    found = {("fedmf", "set", kind): finished(4, fresh=9, search=search) for kind in ("tuned", "clean")}
    found |= {("popularity", "set", "paper"): finished(0, seeds=(4,))}
    text = page(found)
    assert "| method | tuned full | tuned full, fresh | clean full | tuned sampled | paper sampled | kB up |" in text
    means = [np.mean(found["fedmf", "set", "tuned"].values(*what)) for what in ((), ("full", "hr@10"), ("fresh full",))]
    shown = text.split("| fedmf |")[1].split("|")
    assert [float(shown[0].split("±")[0]), float(shown[0].split("/")[1].split("±")[0])] == pytest.approx(
        means[:2], abs=0.01
    )
    assert float(shown[1].split("±")[0]) == pytest.approx(means[2], abs=0.01)
    assert "Seeds of `tuned`: 0, 1 and 2." in text and "Seeds of `paper`: 4." in text
    assert "second" not in text and "s/round" not in text
    without = {key: finished(4) for key in found}
    assert "fresh" not in page(without)


def test_the_page_tells_what_was_tuned_and_with_which_budget(finished, search):
    found = {("fedmf", "set", "tuned"): finished(4, search=search), ("popularity", "set", "tuned"): finished()}
    text = page(found)
    assert "<summary>Tuned settings, search spaces and commits on set</summary>" in text
    assert "<li><b>fedmf</b>: lr=0.01235, schedule=sin. 24 trials, 11 of them stopped early; best NDCG@10 on" in text
    assert "validation 7.10 (with the method&#x27;s own settings 6.40)." in text
    assert "Searched: lr from 0.01 to 3, schedule in {sin, fixed}. Commits: tuned abc1234, fff0000.</li>" in text
    assert "same budget: 24 trials" in text and "nothing to tune for popularity." in text
    rows = list(csv.DictReader(page(found, file="trial.csv").splitlines()))
    assert {(row["kind"], row["commit"]) for row in rows} == {("tuned", "abc1234 fff0000"), ("tuned", "abc1234")}


@pytest.mark.parametrize(
    ("places", "seeds", "words"),
    [
        (6, (0, 1, 2), "fedmf is better than popularity (+"),
        (0, (0, 1, 2), "There is no clear difference between fedmf and popularity."),
        (6, (0, 1), "There are too few seeds for a claim between fedmf and popularity."),
        (6, (), "No claim of this page can be judged here yet."),
    ],
)
def test_a_sentence_before_the_table_says_the_verdict(finished, places, seeds, words):
    found = {("popularity", "set", "tuned"): finished()}
    found |= {("fedmf", "set", "tuned"): finished(places, seeds)} if seeds else {}
    text = page(found)
    assert words in text and text.index(words) < text.index("| method |")
    assert ("the best federated method is **fedmf**" in text) == bool(seeds)
