import csv
import io
import json
from dataclasses import replace

import matplotlib
import pytest

from federec.errors import UserError
from federec.reproduction.drawings.leak import LEAK
from federec.reproduction.drawings.look import DARK, LIGHT, rendered
from federec.reproduction.drawings.make import DRAWINGS, as_csv, drawing, make, measured, page

FILES = {"leak.csv", "leak.md", "leak.svg", "leak.png", "leak-dark.svg"}
SLOW = ("radii", "dimensions", "sparsity", "rankings", "bytes", "embeddings", "additive-embeddings")


def test_a_figure_is_found_by_its_name():
    assert drawing("leak") is LEAK
    with pytest.raises(UserError, match="unknown figure 'lek' - did you mean 'leak'"):
        drawing("lek")


def test_all_files_of_a_figure_are_written_and_a_second_call_only_draws(request_, tmp_path):
    said = []
    request = replace(request_, runs=tmp_path / "runs", say=said.append)
    assert {path.name for path in make(LEAK, request, tmp_path / "a")} == FILES
    assert len(said) == 2
    make(replace(LEAK, data=None), request, tmp_path / "b")
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert (tmp_path / "a" / "leak.svg").read_text() != (tmp_path / "a" / "leak-dark.svg").read_text()
    text = (tmp_path / "a" / "leak.md").read_text()
    assert LEAK.caption(measured(LEAK, request)) in text and "federec figure leak" in text
    assert all(name in text for name in ("leak.svg", "leak-dark.svg", "leak.csv"))


def test_other_settings_and_other_files_are_measured_anew(request_, tmp_path):
    asked = []

    def data(request):
        asked.append(request)
        return [{"value": 0.123456789, "count": 3}]

    chosen, request = replace(LEAK, data=data), replace(request_, runs=tmp_path)
    assert measured(chosen, request) == measured(chosen, request) == [{"value": 0.123457, "count": 3}]
    elsewhere = tmp_path / "other" / "ratings.csv"
    for other in (replace(request, seed=1), replace(request, rounds=9), replace(request, data=str(elsewhere))):
        measured(chosen, other)
    assert len(asked) == 4


def test_a_damaged_measurement_is_refused(request_, tmp_path):
    request = replace(request_, runs=tmp_path)
    measured(replace(LEAK, data=lambda _: [{"a": 1}]), request)
    (kept,) = tmp_path.glob("*.json")
    kept.write_text("[")
    with pytest.raises(UserError, match="is damaged; remove it"):
        measured(LEAK, request)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * (name in SLOW)) for name in DRAWINGS]
)
def test_every_figure_is_measured_drawn_and_described(name, request_):
    chosen = DRAWINGS[name]
    if "embeddings" in name:
        pytest.importorskip("sklearn", reason="pip install federec[results]")
    rows = measured(chosen, request_)
    assert len({tuple(row) for row in rows}) == 1
    assert len([*csv.DictReader(io.StringIO(as_csv(rows)))]) == len(rows)
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    for look in (LIGHT, DARK):
        with matplotlib.rc_context(look.parameters):
            figure = chosen.draw(rows, look)
        assert rendered(figure, look, "svg")
        for axes in figure.axes:
            assert axes.get_xlabel()
        assert figure.axes[0].get_ylabel()
    assert 1 <= chosen.caption(rows).count(". ") + 1 <= 5 and "nan" not in chosen.caption(rows)
    assert chosen.caption(rows) in page(chosen, request_, rows)
