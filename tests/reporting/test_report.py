from html.parser import HTMLParser

import pytest

import federec as fr
from federec.reporting.curves import _ticks, svg_curves
from federec.reporting.report import html_report


class Reader(HTMLParser):
    """Collects text and tags, and fails on tags that do not close in order."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def run(random_split):
    return fr.train(fr.PFedRec(dim=4), random_split().data, rounds=3)


def test_the_report_says_what_was_run_and_how_it_went(run):
    read = Reader(html_report(run.result, run.history))
    text = " ".join(read.words)
    assert "pfedrec on small" in text
    assert "12 users, 40 items" in text
    assert f"{run.result['best_round']} of 3, chosen by validation full.ndcg@10" in text
    assert "last item by time" in text or "random: no time column" in text
    assert f"{run.test['full']['ndcg@10']:.4f}" in text
    assert "another device's" in text
    assert [tag for tag, _ in read.tags].count("polyline") == 6
    assert not any({"src", "href"} & attrs.keys() for _, attrs in read.tags), "it needs nothing from elsewhere"


def test_only_the_paper_protocol_comes_with_a_warning(run):
    assert "leaks" not in html_report(run.result, run.history)
    assert "leaks the answer" in html_report(run.result | {"protocol": "paper"}, run.history)


def test_odd_names_are_text(run):
    result = run.result | {"data": run.result["data"] | {"name": "<b>&'\".csv"}}
    read = Reader(html_report(result, run.history))
    assert "pfedrec on <b>&'\".csv" in "".join(read.words)
    assert "b" not in [tag for tag, _ in read.tags]


def test_one_round_has_no_curves(random_split):
    run = fr.train("popularity", random_split().data)
    html = html_report(run.result, run.history)
    assert "<svg" not in html
    assert "not federated" in html


def test_curves_pass_over_rounds_without_a_loss(run):
    history = [line | {"loss": loss} for line, loss in zip(run.history, (3e28, None, None), strict=True)]
    drawn = svg_curves(history, 1)
    assert drawn.count("<circle") == 1
    assert "nan" not in drawn.lower()
    assert svg_curves([line | {"loss": None} for line in history], 1).count("<svg") == 2


def test_curves_stay_inside_the_figure(run):
    for _, attrs in Reader(svg_curves(run.history, 2)).tags:
        for point in attrs.get("points", "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 440
            assert 0 <= y <= 240


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
    assert _ticks(low, high) == pytest.approx(expected)


def test_notes_are_shown_for_the_first_the_chosen_and_the_last_round(run):
    notes = [{"mixing weight": 0.5 + k / 8, "items: spectrum": [9.0 - k, 1.0 + k]} for k in range(3)]
    history = [line | {"notes": note} for line, note in zip(run.history, notes, strict=True)]
    html = html_report(run.result | {"best_round": 2}, history)
    row = "<tr><td>{}</td><td class=n>{}</td><td class=n>{}</td><td class=n>{}</td></tr>".format
    assert row("mixing weight", "0.5000", "0.6250", "0.7500") in html
    assert row("items: spectrum, last", "1.0000", "2.0000", "3.0000") in html
    silent = [{key: value for key, value in line.items() if key != "notes"} for line in run.history]
    assert "Notes" not in html_report(run.result, silent)
    assert run.history[0]["notes"]["items: effective rank"] > 1
