import math
import re
from itertools import combinations

import pytest
from tests.reporting.reader import Reader

from federec.reporting.figures import HEIGHT, WIDTH, Point, bars, lines, pareto, scatter, ticks_of


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.1, 0.58, [0, 0.2, 0.4, 0.6]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-1, 2, [-1, 0, 1, 2]),
        (0, 3.8e28, [0, 1e28, 2e28, 3e28, 4e28]),
        (0, 1e-5, [0, 2e-6, 4e-6, 6e-6, 8e-6, 1e-5]),
    ],
)
def test_ticks_are_round_numbers_that_hold_the_values(low, high, expected):
    assert ticks_of(low, high) == pytest.approx(expected)


def test_lines_carry_their_values_where_there_are_any():
    read = Reader(lines("Loss", [1, 2, 3], {"a": [0.5, None, None], "b": [0.1, None, 0.3]}, chosen=3, best={"b": 3}))
    (svg,) = (attrs for attrs in read.attributes("svg") if "data-rounds" in attrs)
    assert svg["data-rounds"] == "1 3"
    assert [(g["data-name"], g["data-values"]) for g in read.attributes("g")] == [("a", "0.5 -"), ("b", "0.1 0.3")]
    assert len(read.attributes("polyline")) == 1 and len(read.attributes("circle")) == 2
    for attrs in read.attributes("polyline"):
        for point in attrs["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= WIDTH and 0 <= y <= HEIGHT
    assert [box["class"] for box in read.attributes("input")] == ["t0", "t1"], "the legend switches both"
    assert "chosen: 3" in read.text


def test_one_series_has_no_legend():
    assert Reader(lines("Loss", [1, 2], {"loss": [1.0, 2.0]})).attributes("input") == []


def test_bars_are_as_high_as_their_values():
    read = Reader(bars("Shares", ["x", "y"], {"one": [0.5, 0.25], "two": [0.0, 1.0]}, "%", "thing"))
    heights = [float(rect["height"]) for rect in read.attributes("rect") if "class" in rect]
    assert heights[0] == pytest.approx(2 * heights[2], abs=0.2) and heights[1] == 0
    assert heights[3] == pytest.approx(2 * heights[0], abs=0.2)
    assert "x: one 50 %" in read.text
    assert ["y", "25 %", "100 %"] in read.rows


def test_the_front_has_what_nothing_beats():
    points = [Point(0, "a", 5, 0.3), Point(1, "b", 1, 0.2), Point(2, "c", 2, 0.1), Point(3, "d", 9, 0.3)]
    assert [point.name for point in pareto(points)] == ["b", "a"]


@pytest.mark.parametrize("factor", [1, 1e3, 1e9])
def test_points_stay_inside_the_figure(factor):
    points = [Point(0, "small", 0.02, 0.1), Point(1, "large", 0.03 * factor, 0.4)]
    for circle in Reader(scatter("Costs", points, "MB")).attributes("circle"):
        assert 0 < float(circle["cx"]) < WIDTH and 0 < float(circle["cy"]) < HEIGHT
    assert Reader(scatter("None", [Point(0, "a", 0.0, 0.0), Point(1, "b", 0.0, 0.1)], "MB")).attributes("circle")


def test_numbers_of_near_points_do_not_cover_each_other():
    text = scatter("Costs", [Point(0, "a", 10.0, 0.5), Point(1, "b", 10.0, 0.49), Point(2, "c", 50.0, 0.1)], "MB")
    found = re.findall(r"<circle cx='([\d.]+)' cy='([\d.]+)'.*?<text x='([\d.]+)' y='([\d.]+)'", text)
    dots = [(float(x), float(y)) for x, y, _, _ in found]
    numbers = [(float(x), float(y)) for _, _, x, y in found]
    assert len(numbers) == 3 and all(math.dist(a, b) > 11 for a, b in combinations(numbers, 2))
    assert numbers[0] == (dots[0][0], dots[0][1] - 8)
    assert all(math.dist((x, y + 4), number) > 10 for x, y in dots for number in numbers)
