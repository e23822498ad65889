from federec.reproduction.cells import Row
from federec.reproduction.dimensions import figure, noted, table
from federec.reproduction.found import Finished

FEDMF, PLGC = Row("fedmf", "fedmf"), Row("fedmf+plgc", "fedmf", ("plgc",))


def _lines(ranks, **more):
    notes = [{"items: effective rank": rank, "items: spectrum": [3.0, 1.0], **more} for rank in ranks]
    return [{"round": number, "notes": note} for number, note in enumerate(notes, 1)]


def test_the_table_says_where_each_row_began_and_ended():
    text = table({"fedmf": _lines([2.0, 1.754]), "fedmf+plgc": _lines([2.0, 1.9], **{"mixing weight": 0.5})})
    assert text.startswith(
        "In the last round PLGC changes the effective rank of the item table from 1.8 to 1.9 for fed"
    )
    assert "| fedmf | 2.0 to 1.8 | 0.75 to 0.75 |  |" in text
    assert "| fedmf+plgc | 2.0 to 1.9 | 0.75 to 0.75 | 0.50 to 0.50 |" in text


def test_the_figure_draws_each_row(tmp_path):
    text = figure({"fedmf": _lines([2.0, 1.7]), "fedmf+plgc": _lines([2.0, 1.9], **{"mixing weight": 0.5})})
    assert all(f">{word}<" in text for word in ("fedmf", "fedmf+plgc", "mixing weight", "effective rank"))


def test_the_first_run_under_clean_is_taken_if_its_rounds_have_notes():
    runs = {
        label: Finished([{"notes": _lines([2.0, rank])} for rank in (1.5, 1.0)]) for label in ("fedmf+plgc", "fedmf")
    }
    found = {(label, "x", kind): group for label, group in runs.items() for kind in ("clean", "paper")}
    notes = noted((FEDMF, PLGC), "x", found)
    assert list(notes) == ["fedmf", "fedmf+plgc"] and notes["fedmf"][-1]["notes"]["items: effective rank"] == 1.5
    assert noted((FEDMF,), "y", found) == {}
    for lines in ([], [{"round": 1}]):
        assert noted((FEDMF,), "x", {("fedmf", "x", "clean"): Finished([{"notes": lines}])}) == {}
