"""What is kept of runs: what comes back, what counts as the same run, what an interruption leaves."""

import json
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import federec
from federec.errors import UserError
from federec.reproduction.cells import Cell, Row
from federec.reproduction.records import MISSED, Book, line_of_run, pack, revision, unpack
from federec.runtimes.local import run

FEDMF = Row("fedmf", "fedmf", settings={"dim": 4})


@given(st.lists(st.integers(-1, 10_000), max_size=50))
def test_ranks_within_the_first_ten_come_back(ranks):
    found = unpack(pack(np.array(ranks, dtype=np.int64)))
    assert found.tolist() == [rank if 0 <= rank < 10 else MISSED for rank in ranks]


@pytest.fixture
def line(ratings):
    cell = Cell(FEDMF, str(ratings), "clean", 0, 2)
    config = cell.config()
    return cell, line_of_run(cell, run(config, config.load(), None))


def test_a_run_is_found_by_its_cell_and_has_its_figures(line, tmp_path):
    cell, told = line
    Book(tmp_path / "records").add(told)
    found = Book(tmp_path / "records").run(cell)
    assert found == json.loads(json.dumps(told)) and found["commit"] == revision()
    gains = 1 / np.log2(unpack(found["ranks"]["full"]) + 2) * (unpack(found["ranks"]["full"]) < 10)
    assert gains.mean() == pytest.approx(found["test"]["full"]["ndcg@10"], abs=1e-5)
    assert [noted["round"] for noted in found["notes"]] == [1, 2]


@pytest.mark.parametrize(
    "other",
    [
        {"row": Row("fedmf", "fedmf", settings={"dim": 5})},
        {"rounds": 3},
        {"seed": 1},
        {"kind": "paper"},
        {"kind": "tuned"},
    ],
    ids=str,
)
def test_a_run_with_other_settings_counts_as_none(line, tmp_path, other):
    cell, told = line
    book = Book(tmp_path / "records")
    book.add(told)
    values = {"row": cell.row, "data": cell.data, "kind": cell.kind, "seed": 0, "rounds": 2} | other
    assert book.run(cell) and book.run(Cell(**values)) is None


def test_a_setting_that_came_later_had_its_default_value(line, tmp_path):
    cell, told = line
    book = Book(tmp_path / "records")
    del told["config"]["settings"]["negatives"], told["config"]["settings"]["dim"]
    book.add(told)
    assert book.run(cell) is None  # dim is 4, not the default
    told["config"]["settings"]["dim"] = 4
    book.add(told)
    assert book.run(cell) == told


def test_an_interrupted_line_is_left_out_and_a_damaged_one_is_named(line, tmp_path):
    cell, told = line
    book = Book(tmp_path / "records")
    book.add(told)
    (file,) = book.path.iterdir()
    file.write_text(file.read_text() + '{"line": "run", "da')
    again = Book(book.path)
    assert again.run(cell)
    again.tidy()
    assert file.read_text().count("\n") == 1 and Book(book.path).run(cell)
    file.write_text("{}\n" + file.read_text())
    with pytest.raises(UserError, match=r"small\.jsonl, line 1: is damaged; remove it"):
        Book(book.path)


def test_trials_are_dropped_when_their_search_is_finished(tmp_path):
    book, place = Book(tmp_path), {"row": "fedmf", "data": "x", "commit": "c"}
    book.add({**place, "line": "trial", "params": {"lr": 1.0}})
    assert [trial["params"] for trial in Book(tmp_path).trials(FEDMF, "x")] == [{"lr": 1.0}]
    book.add({**place, "line": "search", "best": {"lr": 2.0}})
    assert Book(tmp_path).trials(FEDMF, "x") == [] and Book(tmp_path).search(FEDMF, "x")["best"] == {"lr": 2.0}
    book.tidy()
    assert (tmp_path / "x.jsonl").read_text().count("\n") == 1


def test_a_tuned_cell_has_the_settings_of_its_search(tmp_path, ratings):
    book, cell = Book(tmp_path / "records"), Cell(FEDMF, str(ratings), "tuned", 0)
    assert book.config(cell) is None
    best = {"lr": 0.3, "dim": 9, "participation": 0.5}
    book.add({"row": "fedmf", "data": str(ratings), "line": "search", "best": best})
    config = book.config(cell)
    assert config.settings["lr"] == 0.3 and config.participation == 0.5
    assert config.settings["dim"] == 4  # that of the row


def test_a_commit_is_that_of_the_sources_and_records_beside_them_do_not_change_it(tmp_path, monkeypatch):
    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", tmp_path, *identity, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    monkeypatch.delenv("FEDEREC_COMMIT", raising=False)
    source, records = tmp_path / "src" / "__init__.py", tmp_path / "records.jsonl"
    source.parent.mkdir()
    source.write_text("")
    records.write_text("")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "all")
    monkeypatch.setattr(federec, "__file__", str(source))
    first, asked_again = git("rev-parse", "--short", "HEAD").strip(), revision.__wrapped__
    records.write_text("a line")
    assert asked_again() == first
    git("commit", "--quiet", "--all", "--message", "a line")
    assert asked_again() == first != git("rev-parse", "--short", "HEAD").strip()
    source.write_text("changed")
    assert asked_again().endswith("-dirty")
