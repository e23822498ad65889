"""A published table from Python: what it runs, what it gives back."""

from pathlib import Path

import pytest

import federec as fr
from federec.reproduction.grids import TUNED, grid
from federec.reproduction.reproduce import cells_of

pytest.importorskip("matplotlib", reason="pip install federec[results]")


def test_the_cells_are_all_rows_of_the_kinds_that_they_have():
    chosen = grid("pfedrec-table3")
    cells = cells_of(chosen, ["tastes"], 2, 5, [])
    assert len({*cells}) == len(cells) == len(chosen.rows) * (1 + 2 + 2)  # one seed under `paper`
    assert {cell.rounds for cell in cells} == {5} and {cell.data for cell in cells} == {"tastes"}
    assert {cell.row.label for cell in cells_of(chosen, [], 1, None, ["fedncf"])} == {"fedncf", "fedncf+dualper"}
    kinds = {(cell.data, cell.kind) for cell in cells_of(chosen, [], 1, None, ["fedmf"])}
    assert ("lastfm-2k-tags", "paper") in kinds and ("lastfm-2k-tags", "clean") not in kinds
    order = cells_of(TUNED, ["filmtrust", "ml-100k"], 1, None, ["fednext"])
    assert [cell.data for cell in order] == ["ml-100k"]  # there is no order without times


@pytest.mark.thorough
def test_a_table_is_run_once_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given, said = {"data": "tastes", "only": "popularity", "rounds": 1}, []
    found = fr.reproduce("fedrap", **given, seeds=1, say=said.append)
    assert found.pages == [Path("results/fedrap.md")] and "popularity" in found.pages[0].read_text()
    assert found.failed == [] and said[0] == "2 runs and 0 searches to do"
    again = fr.reproduce("fedrap", **given, seeds=2, tuned=True, trials=1, say=said.append)
    assert said[3] == "3 runs and 1 searches to do"  # a second seed under `clean`, two tuned runs
    text = again.pages[0].read_text()
    assert "Seeds of `tuned`: 0 and 1." in text and "Seeds of `paper`: 0." in text
    said.clear()
    assert fr.reproduce("all", **given, seeds=2, page_only=True, say=said.append).pages[-1].name == "summary.md"
    assert said == []


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
