import csv
import json

import numpy as np
import pytest

from federec.errors import UserError
from federec.reproduction.cells import Cell, Row, estimate, run_cells, unfinished
from federec.reproduction.grids import Grid
from federec.reproduction.pages import Finished, _claims, published, write_page

ROWS = (Row("fedmf", "fedmf", settings={"dim": 4}), Row("popularity", "popularity", federated=False))


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
    mean = 100 * np.mean([result["test"]["sampled"]["hr@10"] for result in results])
    assert f"{mean:.2f}\u00a0±" in page and "fedmf against popularity" in page and "Best federated method" in page
    with (tmp_path / "out" / "trial.csv").open() as file:
        rows = [
            r
            for r in csv.DictReader(file)
            if (r["method"], r["protocol"], r["ranking"]) == ("fedmf", "clean", "sampled")
        ]
    assert float(rows[0]["mean_percent"]) == pytest.approx(mean, abs=1e-4) and rows[0]["seeds"] == "2"
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
    assert "Further than 2 points" in page and "- popularity: -" in page and "Tried: defaults only." in page
    printed["popularity", grid.data[0], "hr@10"] = 100 * np.mean(
        [c.folder(runs).result()["test"]["sampled"]["hr@10"] for c in popular if c.protocol == "paper"]
    )
    assert "Further than" not in write_page(grid, cells, runs, tmp_path / "out", "").read_text()


def test_only_runs_of_the_same_seed_are_paired():
    ranks = np.random.default_rng(1).integers(0, 40, (3, 300))
    some = Finished([{"seed": seed} for seed in (0, 1, 2)], [{"full": each} for each in ranks])
    late = Finished([{"seed": 2}], [{"full": ranks[2]}])
    difference, seeds = some.against(late, "full", "hr@10")
    assert seeds == 1 and difference == (0, 0, 0)  # the same runs; seed 0 against seed 2 would differ
    assert some.against(Finished([{"seed": 7}], [{"full": ranks[0]}]), "full", "hr@10") is None


def test_a_claim_is_judged_by_full_ranking(small):
    """Where rankings disagree, the one against all items counts."""
    grid, cells, _ = small
    first, last = np.zeros(300, np.int64), np.full(300, 90)
    better = Finished([{"seed": 0}], [{"full": first, "sampled": last}])
    worse = Finished([{"seed": 0}], [{"full": last, "sampled": first}])
    found = {("fedmf", cells[0].data, "clean"): better, ("popularity", cells[0].data, "clean"): worse}
    assert "| fedmf against popularity | better | +100.00" in _claims(grid, cells[0].data, found)
