import csv
import json

import numpy as np
import pytest

from federec.errors import UserError
from federec.reproduction.cells import Cell, Row, estimate, run_cells, unfinished
from federec.reproduction.grids import Grid
from federec.reproduction.pages import page_files, published, write_page

ROWS = (Row("fedmf", "fedmf", settings={"dim": 4}), Row("popularity", "popularity", federated=False))
GRID = Grid("trial", "A trial", "Two rows.", ROWS, ("set",), (("fedmf", "popularity"),))


@pytest.fixture
def small(tmp_path):
    """A grid of two rows on a small file, and its cells with two seeds."""
    random = np.random.default_rng(0)
    lines = [f"{u},{i},{t}" for u in range(12) for t, i in enumerate(random.permutation(30)[:8])]
    path = tmp_path / "small.csv"
    path.write_text("user,item,timestamp\n" + "\n".join(lines) + "\n")
    grid = Grid("trial", "A trial", "Two rows.", ROWS, (str(path),), (("fedmf", "popularity"),))
    cells = [
        Cell(row, str(path), protocol, seed, 2) for row in ROWS for protocol in ("clean", "paper") for seed in (0, 1)
    ]
    return grid, cells, tmp_path / "runs"


def test_cells_are_run_once_and_the_page_holds_their_figures(small, tmp_path):
    grid, cells, runs = small
    said = []
    assert estimate(cells, runs, said.append) > 0
    assert len(unfinished(cells, runs)) == len(cells)
    assert run_cells(cells, runs, 2, said.append) == []
    assert unfinished(cells, runs) == []
    assert run_cells(cells, runs, 2, said.append) == []  # nothing left to do

    page = write_page(grid, cells, runs, tmp_path / "out", "federec reproduce trial").read_text()
    results = [json.loads((cell.folder(runs).path / "result.json").read_text()) for cell in cells[:2]]
    expected = 100 * np.mean([result["test"]["sampled"]["hr@10"] for result in results])
    full = 100 * np.mean([result["test"]["full"]["ndcg@10"] for result in results])
    assert f"{full:.2f}\u00a0±" in page and "fedmf against popularity" in page and "best federated method" in page
    with (tmp_path / "out" / "trial.csv").open() as file:
        rows = [
            r for r in csv.DictReader(file) if (r["method"], r["kind"], r["ranking"]) == ("fedmf", "clean", "sampled")
        ]
    mean = {row["metric"]: float(row["mean_percent"]) for row in rows}["hr@10"]
    assert mean == pytest.approx(expected, abs=1e-4) and rows[0]["seeds"] == "2"
    assert list((tmp_path / "out").glob("*.svg"))


def test_a_run_with_other_settings_is_not_taken_for_the_cell(small):
    _, cells, runs = small
    run_cells(cells[:1], runs, 1, lambda text: None)
    assert cells[0].finished(runs)
    changed = Cell(Row("fedmf", "fedmf", settings={"dim": 5}), cells[0].data, "clean", 0, 2)
    with pytest.raises(UserError, match="other settings than fedmf has now; delete it"):
        unfinished([changed], runs)


def test_a_cell_that_fails_is_named_and_the_others_go_on(small):
    _, cells, runs = small
    broken = Cell(Row("nonsense", "fedmf", settings={"dim": -1}), cells[0].data, "clean", 0, 2)
    failures = run_cells([broken, cells[-1]], runs, 1, lambda text: None)
    assert [cell for cell, _ in failures] == [broken]
    assert "dim=-1" in failures[0][1]
    assert cells[-1].folder(runs).finished


def test_published_figures_are_those_of_the_paper():
    table = published("pfedrec-table2")
    assert table["pfedrec", "ml-1m", "hr@10"] == 73.26 and table["fedmf", "ml-100k", "ndcg@10"] == 39.38


def test_a_published_figure_that_was_missed_is_named(small, tmp_path, monkeypatch):
    grid, cells, runs = small
    popular = [cell for cell in cells if cell.row.label == "popularity"]
    run_cells(popular, runs, 2, lambda text: None)
    printed = {("popularity", grid.data[0], "hr@10"): 200.0}
    monkeypatch.setattr("federec.reproduction.pages.published", lambda table: printed)
    page = write_page(grid, cells, runs, tmp_path / "out", "federec reproduce trial").read_text()
    assert "Further than 2 points" in page and "- popularity reaches " in page
    assert "points below the published 200.0. Tried: defaults only." in page
    printed["popularity", grid.data[0], "hr@10"] = 100 * np.mean(
        [c.folder(runs).result()["test"]["sampled"]["hr@10"] for c in popular if c.protocol == "paper"]
    )
    assert "Further than" not in write_page(grid, cells, runs, tmp_path / "out", "").read_text()


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
