import copy
import re

import pytest
import torch
from tests.reporting.reader import Reader

import federec as fr
from federec.reporting.details import examples_of
from federec.reporting.report import html_report, html_summary, in_words


@pytest.fixture(scope="module")
def run(random_split):
    return fr.train(fr.PFedRec(dim=4), random_split().data, rounds=3)


@pytest.fixture(scope="module")
def html(run):
    return html_report(run.result, run.history, run.ranks, examples_of(run.ranks, run.data))


def test_the_report_says_what_was_run_and_how_it_went(run, html):
    read = Reader(html)
    assert "pfedrec on small" in read.text
    assert "12 users, 40 items" in read.text
    assert f"{run.result['best_round']} of 3, chosen by validation full.ndcg@10" in read.text
    assert "last item by time" in read.text or "random: no time column" in read.text
    assert f"{run.test['full']['ndcg@10']:.4f}" in read.text
    assert "with another device's item rows" in read.text
    titles = [attrs["aria-label"].partition(":")[0] for attrs in read.attributes("svg") if "role" in attrs]
    assert titles == [
        "Metrics against all items (a sample of users)",
        "Sampled metrics",
        "Training loss",
        "Seconds a round",
        "Kilobytes a round, per device",
        "Position of the held-out item among 40",
        "Light and heavy users",
        "Popular items",
    ]


def test_the_report_needs_nothing_from_elsewhere(html):
    read = Reader(html)
    assert not any({"src", "href", "action"} & attrs.keys() for _, attrs in read.tags)
    assert not re.search(r"https?:|url\(|@import|fetch\(", html)


def test_only_the_paper_protocol_comes_with_a_warning(run):
    assert "leaks" not in html_report(run.result, run.history)
    assert "leaks the answer" in html_report(run.result | {"protocol": "paper"}, run.history)


def test_odd_names_are_text(run):
    result = run.result | {"data": run.result["data"] | {"name": "<b>&'\".csv"}}
    read = Reader(html_report(result, run.history))
    assert "pfedrec on <b>&'\".csv" in "".join(read.words)
    assert [attrs for attrs in read.attributes("b") if attrs] == [] and len(read.attributes("b")) == 3  # the cards


def test_one_round_has_no_curves(random_split):
    run = fr.train("popularity", random_split().data)
    html = html_report(run.result, run.history)
    assert "polyline" not in html
    assert "There was only one round" in html
    assert "not federated" in html


def test_notes_are_shown_for_the_first_the_chosen_and_the_last_round(run):
    notes = [{"mixing weight": 0.5 + k / 8, "items: spectrum": [9.0 - k, 1.0 + k]} for k in range(3)]
    history = [line | {"notes": note} for line, note in zip(run.history, notes, strict=True)]
    rows = Reader(html_report(run.result | {"best_round": 2}, history)).rows
    assert ["mixing weight", "0.5000", "0.6250", "0.7500"] in rows
    assert ["items: spectrum, last", "1.0000", "2.0000", "3.0000"] in rows
    silent = [{key: value for key, value in line.items() if key != "notes"} for line in run.history]
    assert "Notes" not in html_report(run.result, silent)
    assert run.history[0]["notes"]["items: effective rank"] > 1


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (0.1267, "In 13 of 100 cases the next item was among the ten first of 1,682."),
        (0.0042, "In 4 of 1,000 cases the next item was among the ten first of 1,682."),
        (0.0, "In 0 of 100 cases"),
        (1e-6, "In less than 1 of 10,000 cases"),
        (1.0, "In 100 of 100 cases"),
    ],
)
def test_the_outcome_in_words(value, says):
    data = {"users": 943, "items": 1682, "split": "last item by time", "held_out": {"test": 943}}
    result = {"data": data, "test": {"full": {"hr@10": value}, "sampled": {"hr@10": 0.5}}}
    sentences = in_words(result)
    assert sentences[0].startswith(says)
    assert sentences[1] == "Ten items drawn at random would have it in 6 of 1,000 cases."
    assert sentences[2] == "Against only 99 random items it was among the ten first in 50 of 100 cases."


def test_words_for_several_held_out_items():
    data = {"users": 10, "items": 1682, "split": "last 10 %", "held_out": {"test": 40}, "users_not_evaluated": 2}
    result = {"data": data, "test": {"full": {"hr@10": 0.25}, "sampled": {}}}
    assert in_words(result) == [
        "For 25 of 100 users at least one of the held-out items was among the ten first of 1,682."
    ]


def test_runs_of_older_versions_have_a_report(run):
    """The first versions wrote none of these."""
    result = copy.deepcopy(run.result)
    for key in ("selection", "engine", "machine"):
        del result[key]
    for key in ("split", "held_out", "columns", "unused_columns", "evaluated_users", "users_not_evaluated"):
        result["data"].pop(key, None)
    for key in ("channel", "select", "ties"):
        del result["config"][key]
    for part in ("valid", "test"):
        result[part] = {kind: {"hr@10": 0.5, "ndcg@10": 0.3} for kind in ("sampled", "full")}
    history = [{key: line[key] for key in ("round", "loss", "valid", "test")} for line in run.history]
    ranks = {key: run.ranks[key] for key in ("valid sampled", "test sampled", "valid full", "test full")}
    read = Reader(html_report(result, history, ranks, examples_of(ranks, run.data)))
    assert "chosen by validation sampled.hr@10" in read.text
    assert read.text.count("Left out: the version of federec that made this run did not keep") == 3
    assert "Machine" not in read.text
    Reader(html_report(result, history))


def test_a_federation_has_no_part_about_users(run):
    communication = {"up_bytes_per_node_round": 5.0, "down_bytes_per_node_round": 5.0, "users_per_node": 3.0}
    result = run.result | {"communication": communication, "test": {"sampled": {}, "full": {}}}
    read = Reader(html_report(result, run.history))
    assert "only sees sums" in read.text
    assert "Kilobytes a round, per node" in read.text
    assert "User " not in read.text and "Position" not in read.text and "--config" not in read.text


def test_only_example_users_are_named(run, html):
    named = set(re.findall(r"<h3>User (.+?)</h3>", html))
    assert named == {str(run.data.user_ids[code]) for code in run.ranks["examples"][:, 0].tolist()}
    assert len(named) == 5
    assert "<h3>User" not in html_report(run.result, run.history, run.ranks), "without data there are no titles"
    without = {key: value for key, value in run.ranks.items() if key != "examples"}
    assert "<h3>User" not in html_report(run.result, run.history, without, examples_of(without, run.data))


def test_notebooks_show_a_part_of_it(run):
    read = Reader(html_summary(run.result, run.history))
    assert "script" not in [tag for tag, _ in read.tags] and "chosen by validation" in read.text


def test_scores_that_are_nowhere_do_not_break_it(run):
    ranks = run.ranks | {"recommended": torch.zeros(40, dtype=torch.int32)}
    broken, whole = (
        Reader(html_report(run.result, run.history, each, examples_of(each, run.data))).text
        for each in (ranks, run.ranks)
    )
    assert broken != whole and "nan" not in broken.lower().split()


def test_python_writes_it(run, tmp_path):
    assert Reader(run.report(tmp_path / "a.html").read_text()).attributes("svg")
