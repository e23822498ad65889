import re

import pytest

from federec.reproduction.cells import Row
from federec.reproduction.claims import decide
from federec.reproduction.grids import TUNED
from federec.reproduction.questions import QUESTIONS, Question
from federec.reproduction.records import Book
from federec.reproduction.summary import HEADLINES, answer, summary, write_summary

ROWS = [Row(label, label) for label in ("fedmf", "pfedrec", "fednext", "fedease", "fedsasrec")]
ROWS += [Row(label, label, federated=False) for label in ("ease", "ials", "lightgcn", "sasrec", "popularity")]
DATA = ["ml-100k", "ml-1m", "filmtrust"]
IDEA = Question("magic", (("a", "b"), ("c", "b")), told=(("a", "c"),))


def test_every_question_is_about_rows_that_are_tuned():
    labels = {row.label for row in TUNED.rows}
    assert {label for question in QUESTIONS for pair in question.all_pairs for label in pair} <= labels


@pytest.fixture
def told(finished):
    """A function that gives the sentence on the idea, from places gained by row on each of some data sets."""

    def tell(places, seeds=(0, 1, 2)):
        found = {
            (label, f"set{n}", "tuned"): finished(p, seeds) for label in places for n, p in enumerate(places[label])
        }
        data = [f"set{n}" for n in range(3)]
        return answer(IDEA, data, decide([(*pair, name) for pair in IDEA.all_pairs for name in data], found))

    return tell


def test_a_sentence_says_whether_it_helps_and_by_how_much(told):
    helps = told({"a": [6, 6, 0], "b": [0, 0, 0]})
    assert re.fullmatch(
        r"\*\*Magic helps\*\* \(so far 3 of 6 comparisons\): "
        r"a against b gains on 2 of 3 data sets \(set0 \+\d+\.\d, set1 \+\d+\.\d\) and shows no "
        r"clear difference on 1 \(\+0\.0 points\)\.",
        helps,
    )
    some = told({"a": [6, 0, 0], "b": [0, 0, 0]})
    assert some.startswith(
        "**Magic helps in some cases only** (so far 3 of 6 comparisons): a against b gains on 1 of 3 data sets (set0 +"
    )
    worse = told({"a": [0, 0, 0], "b": [6, 0, 0]})
    assert worse.startswith(
        "**Magic shows no clear gain** (so far 3 of 6 comparisons): a against b loses on 1 of 3 data sets (set0 -"
    )
    mixed = told({"a": [6, 0], "b": [0, 6], "c": [0, 6]})
    assert mixed.startswith(
        "**Magic shows no clear gain** (so far 4 of 6 comparisons): a against b gains on 1 of 2 data sets (set0 +"
    )
    assert "; of 2 comparisons (c against b) 0 gain and 0 lose (from +0.0 to +0.0 points); a against c gains" in mixed


def test_a_sentence_says_if_nothing_can_be_said(told):
    assert told({"a": [6]}) == "Magic: nothing was run for this question with tuned settings."
    assert told({"a": [6], "b": [0]}, (0, 1)).startswith("**Magic has too few seeds for a claim** (so far")


@pytest.fixture
def found(finished, search):
    places = {"fedmf": 0, "pfedrec": 0, "fednext": 6, "fedease": 4, "ease": 4, "ials": 2, "sasrec": 12, "popularity": 0}
    made = {(label, name, "tuned"): finished(n, search=search) for label, n in places.items() for name in DATA}
    made["fednext", "ml-1m", "tuned"] = finished(0, fresh=8)
    made["fedmf", "ml-1m", "clean"] = finished(20)
    return made


def test_the_page_opens_with_five_sentences_and_rests_on_tuned_runs(found):
    text = summary(ROWS, DATA, found)
    lines = text.splitlines()
    assert lines[0] == "# What survives" and all(line.startswith("- ") for line in lines[2 : 2 + HEADLINES])
    assert lines[2].startswith(
        "- **Dual personalisation shows no clear gain** (so far 3 of 12 comparisons): pfedrec against fedmf"
    )
    assert lines[3] == "- Additive personalisation: nothing was run for this question with tuned settings."
    assert "**Order helps" in lines[6] and lines[7] == ""
    assert "24 trials" in text and "seeds 0, 1 and 2" in text and "## Does order help?" in text
    asked = [key for key in found if key[2] == "tuned"]
    assert text == summary(ROWS, DATA, {key: found[key] for key in asked})
    count = int(re.search(r"over all (\d+) comparisons", text)[1])
    assert count == len(re.findall(r"p\u00a0[<=]", text))


def test_the_best_federated_method_meets_the_best_centralised_one_without_order(found):
    text = summary(ROWS, DATA, found)
    goals = next(line for line in text.splitlines() if line.startswith("With training histories"))
    assert re.search(
        r"without order on ml-100k \(fednext \+\d+ %\), but not on ml-1m \(fedease \+0 %; order does", goals
    )
    assert "fednext is behind ease" in goals and "filmtrust" not in goals  # it has no times
    fresh = goals.split("With fresh histories")[1]
    assert re.search(r"on ml-100k \(fednext \+\d+ %\) and ml-1m \(fednext \+\d+ %\)\.", fresh)
    row = next(line for line in text.splitlines() if line.startswith("| ml-1m | fedease"))
    assert row.split(" | ")[3:5] == ["+0.0 %", "no clear difference"] and "| fednext " in row and "sasrec" not in row


def test_only_a_claim_is_bold(found):
    table = summary(ROWS, DATA, found).split("## Does order help?")[1].split("##")[0]
    lines = [line for line in table.splitlines() if line.startswith("| fednext against ease")]
    cells = lines[0].split(" | ")
    assert cells[1:5] == ["2", "1", "0", "0"]
    assert cells[5].startswith("**+") and cells[6].startswith("**-")
    dual = summary(ROWS, DATA, found).split("## Does dual personalisation help?")[1].split("##")[0]
    assert re.search(r"\| \+0\.0\u00a0\[-\d\.\d,\u00a0\+\d\.\d\], p\u00a0= 1\.000 \(\+0\.0\) \|", dual)


def test_the_summary_is_written_from_what_is_found(found, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("federec.reproduction.summary.collect", lambda cells, book: asked.extend(cells) or found)
    text = write_summary(Book(tmp_path), tmp_path / "out").read_text()
    assert text.startswith("# What survives") and {cell.kind for cell in asked} == {"tuned"}
    assert {cell.seed for cell in asked} == {0, 1, 2, 3, 4}
