"""A published table from Python: what it runs, what it gives back."""

from pathlib import Path

import pytest

import federec as fr
from federec.evaluation.protocols import PROTOCOLS
from federec.reproduction.grids import grid
from federec.reproduction.reproduce import cells_of
from federec.runtimes.local import run

pytest.importorskip("matplotlib", reason="pip install federec[results]")


def test_the_cells_are_all_rows_under_both_protocols():
    chosen = grid("pfedrec-table3")
    cells = cells_of(chosen, ["tastes"], 2, 5, [])
    assert len({*cells}) == len(cells) == 2 * len(chosen.rows) * len(PROTOCOLS)
    assert {cell.rounds for cell in cells} == {5} and {cell.data for cell in cells} == {"tastes"}
    assert {cell.row.label for cell in cells_of(chosen, [], 1, None, ["fedncf"])} == {"fedncf", "fedncf+dualper"}


@pytest.mark.thorough
def test_the_runs_of_a_table_can_be_compared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"data": "tastes", "only": "popularity", "seeds": 1, "rounds": 1}
    data, said = fr.load("tastes"), []
    for cell in cells_of(grid("fedrap"), ["tastes"], 1, 1, ["popularity"]):
        run(cell.config(), data, cell.folder(Path("runs/reproduce")))
    found = fr.reproduce("fedrap", **given, say=said.append)
    assert said == []  # all were run already
    assert found.page == Path("results/fedrap.md") and "popularity" in found.page.read_text()
    assert found.failed == [] and len(found.runs) == 2
    assert {record["protocol"] for record in fr.compare(found.runs).records()} == {"clean", "paper"}


@pytest.mark.parametrize(
    ("table", "given", "words"),
    [
        ("fedrpa", {}, "unknown table 'fedrpa' - did you mean 'fedrap'"),
        ("fedrap", {"only": "nothing"}, "no row of fedrap has 'nothing' in its name"),
        ("fedrap", {"data": "tastes", "page_only": True}, "holds no finished run for this page"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path, monkeypatch, table, given, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fr.UserError, match=words):
        fr.reproduce(table, **given)
