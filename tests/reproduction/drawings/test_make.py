import csv
import io
import json
from dataclasses import replace

import matplotlib
import pytest

from federec.errors import UserError
from federec.reproduction.drawings.leak import LEAK
from federec.reproduction.drawings.look import DARK, LIGHT, rendered
from federec.reproduction.drawings.make import DRAWINGS, as_csv, drawing, index, make, measured, page, redraw, rows_of

FILES = {"leak.csv", "leak.md", "leak.svg", "leak.png", "leak-dark.svg", "leak-dark.png"}
SLOW = ("radii", "dimensions", "sparsity", "rankings", "bytes", "embeddings", "additive-embeddings", "privacy")


def test_a_figure_is_found_by_its_name():
    assert drawing("leak") is LEAK
    with pytest.raises(UserError, match="unknown figure 'lek' - did you mean 'leak'"):
        drawing("lek")


def test_all_files_of_a_figure_are_written_and_a_second_call_only_draws(request_, tmp_path):
    said = []
    request = replace(request_, runs=tmp_path / "runs", say=said.append)
    assert {path.name for path in make(LEAK, request, tmp_path / "a", [request.data])} == FILES
    assert len(said) == 2
    make(replace(LEAK, data=None), request, tmp_path / "b", [request.data])
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert (tmp_path / "a" / "leak.svg").read_text() != (tmp_path / "a" / "leak-dark.svg").read_text()
    text = (tmp_path / "a" / "leak.md").read_text()
    assert LEAK.caption(measured(LEAK, request).rows) in text and "federec figure leak" in text
    assert measured(LEAK, request).commit in text
    assert all(name in text for name in ("leak.svg", "leak-dark.svg", "leak.csv"))


def test_a_figure_is_drawn_again_from_its_csv(request_, tmp_path):
    make(LEAK, replace(request_, runs=tmp_path / "runs"), tmp_path / "figures", [request_.data])
    before = {name: (tmp_path / "figures" / name).read_bytes() for name in FILES}
    for name in FILES - {"leak.csv", "leak.md"}:
        (tmp_path / "figures" / name).unlink()
    assert {path.name for path in redraw(LEAK, tmp_path / "figures")} == FILES
    assert {name: (tmp_path / "figures" / name).read_bytes() for name in FILES} == before
    text = index(tmp_path / "figures").read_text()
    assert "## leak" in text and "(figures/leak-dark.svg#" in text and "(figures/leak.csv)" in text
    (tmp_path / "figures" / "leak.md").write_text("# leak\n")
    with pytest.raises(UserError, match="does not say which command measured the figure"):
        redraw(LEAK, tmp_path / "figures")


def test_a_figure_of_several_sets_names_them_in_its_data(request_, tmp_path):
    def data(request):
        return [{"value": 1.5}]

    request = replace(request_, runs=tmp_path)
    several = replace(LEAK, data=data, sets=("ml-100k", "ml-1m"), draw=LEAK.draw)
    assert measured(several, replace(request, data="ml-1m")).rows == [{"data": "ml-1m", "value": 1.5}]
    with pytest.raises(UserError, match="the figure 'leak' shows one data set; give --data once"):
        make(replace(LEAK, data=data), request, tmp_path, ["ml-100k", "ml-1m"])


def test_rows_are_read_as_they_were_written():
    rows = [{"name": "a", "count": 3, "value": 0.25}, {"name": "1e", "count": -4, "value": 1e-07}]
    assert rows_of(as_csv(rows)) == rows


def test_other_settings_and_other_files_are_measured_anew(request_, tmp_path):
    asked = []

    def data(request):
        asked.append(request)
        return [{"value": 0.123456789, "count": 3}]

    chosen, request = replace(LEAK, data=data), replace(request_, runs=tmp_path)
    assert measured(chosen, request) == measured(chosen, request)
    assert measured(chosen, request).rows == [{"value": 0.123457, "count": 3}]
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
    rows = measured(chosen, request_).rows
    assert len({tuple(row) for row in rows}) == 1
    assert len([*csv.DictReader(io.StringIO(as_csv(rows)))]) == len(rows)
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows == rows_of(as_csv(rows))
    for look in (LIGHT, DARK):
        with matplotlib.rc_context(look.parameters):
            figure = chosen.draw(rows, look)
        assert rendered(figure, look, "svg")
        for axes in figure.axes:
            assert axes.get_xlabel() or axes.get_ylabel()  # a colour bar has one axis
        assert any(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
    assert 1 <= chosen.caption(rows).count(". ") + 1 <= 5 and "nan" not in chosen.caption(rows)
    assert chosen.caption(rows) in page(chosen, "`a command`", rows)
