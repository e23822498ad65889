import numpy as np

from federec.reproduction import summary
from federec.reproduction.cells import Cell, Row, run_cells
from federec.reproduction.grids import GRIDS, Grid
from federec.reproduction.pages import Finished
from federec.reproduction.summary import QUESTIONS, write_summary


def test_every_question_is_about_rows_that_grids_have():
    labels = {row.label for grid in GRIDS.values() for row in grid.rows}
    assert {label for _, pairs in QUESTIONS for pair in pairs for label in pair} <= labels


def test_the_summary_names_the_best_and_answers_from_finished_runs(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    lines = [f"{u},{i},{t}" for u in range(12) for t, i in enumerate(random.permutation(30)[:8])]
    path = tmp_path / "small.csv"
    path.write_text("user,item,timestamp\n" + "\n".join(lines) + "\n")
    rows = (Row("fedease", "fedease"), Row("popularity", "popularity", federated=False), Row("fedals", "fedals"))
    monkeypatch.setattr(summary, "GRIDS", {"trial": Grid("trial", "A trial", "Rows.", rows, (str(path),))})
    pairs = (("fedease", "popularity"), ("fedals", "popularity"))
    monkeypatch.setattr(summary, "QUESTIONS", (("Does it help?", pairs), ("Other?", (("fedals", "fedease"),))))
    assert run_cells([Cell(row, str(path), "clean", 0) for row in rows[:2]], tmp_path / "runs", 2, str) == []
    page = write_summary(2, tmp_path / "runs", tmp_path / "out").read_text()
    assert "| fedease " in page and "| popularity " in page  # the best of each kind
    assert "fedease against popularity" in page and "¹" in page
    assert "| fedals against popularity | 0, 0 of 0 |  |" in page and page.endswith("Not run yet.\n")


def test_only_a_clear_difference_is_bold():
    ranks, seeds = np.random.default_rng(1).integers(0, 40, (2, 400)), [{"seed": 0}, {"seed": 1}]
    base, better = (
        Finished(seeds, [{"full": each, "sampled": each} for each in some])
        for some in (ranks, np.maximum(ranks - 6, 0))
    )
    answers = [summary._answer(*[group.against(base, "full", "hr@10")] * 2) for group in (better, base)]
    assert answers[0].startswith("**+") and not answers[1].startswith("**")
    found = {("x", "set", "clean"): better, ("y", "set", "clean"): base}
    page = summary._answers((("x", "y"), ("y", "x"), ("x", "x")), ["set"], found)
    assert [line.split("|")[2].strip() for line in page.splitlines()[2:]] == ["1, 0 of 1", "0, 1 of 1", "0, 0 of 1"]
