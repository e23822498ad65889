import pytest

from federec.reproduction.cells import Cell, Row
from federec.reproduction.dimensions import figure, noted, table
from federec.runs.folder import RunFolder

FEDMF, PLGC = Row("fedmf", "fedmf"), Row("fedmf+plgc", "fedmf", ("plgc",))


def _lines(ranks, **more):
    notes = [{"items: effective rank": rank, "items: spectrum": [3.0, 1.0], **more} for rank in ranks]
    return [{"round": number, "notes": note} for number, note in enumerate(notes, 1)]


def test_the_table_says_where_each_row_began_and_ended():
    text = table({"fedmf": _lines([2.0, 1.754]), "fedmf+plgc": _lines([2.0, 1.9], **{"mixing weight": 0.5})})
    assert "| fedmf | 2.0 to 1.8 | 0.75 to 0.75 |  |" in text
    assert "| fedmf+plgc | 2.0 to 1.9 | 0.75 to 0.75 | 0.50 to 0.50 |" in text


def test_the_figure_draws_each_row(tmp_path):
    text = figure({"fedmf": _lines([2.0, 1.7]), "fedmf+plgc": _lines([2.0, 1.9], **{"mixing weight": 0.5})})
    assert all(f">{word}<" in text for word in ("fedmf", "fedmf+plgc", "mixing weight", "effective rank"))


@pytest.mark.parametrize("kept", [True, False], ids=["with its rounds", "without"])
def test_runs_that_kept_their_rounds_are_taken_by_row(tmp_path, monkeypatch, kept):
    monkeypatch.setattr(Cell, "finished", lambda cell, runs: cell.seed == 1)
    monkeypatch.setattr(RunFolder, "result", lambda folder: {"rounds": 2})
    cells = [
        Cell(row, "x", protocol, seed) for seed in (0, 1) for row in (FEDMF, PLGC) for protocol in ("paper", "clean")
    ]
    for cell in cells:
        path = cell.folder(tmp_path).path
        path.mkdir()
        if kept:
            for line in _lines([2.0, 1.0 + cell.seed]):
                cell.folder(tmp_path).add_line(line)
    found = noted(cells, "x", tmp_path)
    assert list(found) == (["fedmf", "fedmf+plgc"] if kept else [])
    assert all(lines[-1]["notes"]["items: effective rank"] == 2.0 for lines in found.values())
    assert noted(cells, "y", tmp_path) == {}
