import re
from statistics import fmean

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


def test_sentences_say_whether_it_helps_and_by_how_much(told):
    helps = told({"a": [6, 6, 0], "b": [0, 0, 0]})
    assert re.fullmatch(
        r"\*\*Magic helps\.\*\* a is better than b on set0 \(\+\d+\.\d points\) and set1 \(\+\d+\.\d points\)\. On "
        r"another data set there is no clear difference \(\+0\.0 points\)\. So far 3 of 6 comparisons are measured\.",
        helps,
    )
    some = told({"a": [6, 0, 0], "b": [0, 0, 0]})
    assert some.startswith("**Magic helps in 1 of 3 comparisons.** a is better than b on set0 (+")
    assert "On 2 other data sets there is no clear difference (+0.0 to +0.0 points)." in some
    worse = told({"a": [0, 0, 0], "b": [6, 0, 0]})
    assert worse.startswith("**Magic shows no clear gain.** a is worse than b on set0 (-")
    mixed = told({"a": [6, 0], "b": [0, 6], "c": [0, 6]})
    assert re.search(
        r"a is better than b on set0 \(\+\d+\.\d points\) and worse on set1 \(-\d+\.\d points\)\. In 2", mixed
    )
    assert "In 2 comparisons of c against b it is never better and never worse. a is better than c on set0" in mixed
    same = told({"a": [0, 0, 0], "b": [0, 0, 0]})
    assert "On 3 data sets there is no clear difference between a and b (" in same


def test_many_data_sets_are_counted_and_not_named(finished):
    data = [f"set{n}" for n in range(4)]
    found = {(label, name, "tuned"): finished(p) for label, p in (("a", 6), ("b", 0)) for name in data}
    said = answer(IDEA, data, decide([("a", "b", name) for name in data], found))
    assert re.search(r"a is better than b on all 4 data sets \(\+\d+\.\d to \+\d+\.\d points\)\.", said)


def test_a_sentence_says_if_nothing_can_be_said(told):
    assert told({"a": [6]}) == "**Magic** is not measured yet."
    few = told({"a": [6], "b": [0]}, (0, 1))
    assert few.startswith(
        "**Magic has too few seeds for a claim.** On 1 data set there are too few seeds for a claim betw"
    )


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
    assert lines[0] == "# What survives" and all(line.startswith("- ") for line in lines[4 : 4 + HEADLINES])
    assert lines[4].startswith(
        "- **Dual personalisation shows no clear gain.** On 3 data sets there is no clear difference"
    )
    assert lines[5] == "- **Additive personalisation** is not measured yet."
    assert "**Order helps" in lines[8] and lines[9] == ""
    assert "24 trials" in text and "seeds 0, 1 and 2" in text and "## Does order help?" in text
    asked = [key for key in found if key[2] == "tuned"]
    assert text == summary(ROWS, DATA, {key: found[key] for key in asked})
    count = int(re.search(r"over all (\d+) comparisons", text)[1])
    compared = {*re.findall(r"<td>(.+?) against (.+?)</td><td>(.+?)</td>", text)}
    races = re.findall(r"^\| (\S+) \| (?:better|no clear difference) \| (\S+) \S+ \| (\S+) \S+ \|", text, re.M)
    assert len(races) == 3 and count == len(compared | {(one, other, name) for name, one, other in races})


def test_a_method_that_was_searched_twice_shows_the_size_of_chance(found, finished):
    assert "Chance in the search:" not in summary(ROWS, DATA, found)
    found |= {("fedmf+dualper", name, "tuned"): finished(n) for name, n in zip(DATA, (0, 4, 2), strict=True)}
    rows = [[found[label, name, "tuned"] for name in DATA] for label in ("pfedrec", "fedmf+dualper")]
    apart = [abs(fmean(one.values()) - fmean(other.values())) for one, other in zip(*rows, strict=True)]
    text = summary(ROWS, DATA, found)
    assert (
        f"{sum(apart) / 3:.1f} points in the mean over data sets and by {max(apart):.1f} points at most (on ml-1m)"
        in text
    )


def test_the_best_federated_method_meets_the_best_centralised_one_without_order(found):
    text = summary(ROWS, DATA, found)
    goals = next(line for line in text.splitlines() if line.startswith("The best federated method"))
    where = r"without order on ml-100k \(fednext, \+\d+\.\d %\), but not on ml-1m \(fedease, \+0\.0 %\)\."
    assert re.search(where, goals)
    assert goals.count("Of the centralised ones lightgcn is not measured yet on ml-100k and ml-1m.") == 1
    assert "On ml-1m order does not help: fednext is worse than ease." in goals
    assert "filmtrust" not in goals  # it has no times
    fresh = goals.split("With fresh histories")[1]
    assert re.search(r"on ml-100k \(fednext, \+\d+\.\d %\) and ml-1m \(fednext, \+\d+\.\d %\)\.", fresh)
    old, new = (line.split(" | ") for line in text.splitlines() if line.startswith("| ml-1m | "))
    assert old[1] == "no clear difference" and old[2].startswith("fedease ") and old[4] == "+0.0 % |"
    assert new[1].startswith("fednext ") and "sasrec" not in old[3] + new[2]


def test_only_a_claim_is_bold_and_details_have_intervals(found):
    text = summary(ROWS, DATA, found).split("## Does order help?")[1].split("##")[0]
    (line,) = [line for line in text.splitlines() if line.startswith("| fednext against ease")]
    _, verdict, points = line.split(" | ")
    assert verdict == "better on 2 and worse on 1 of 3" and points.count("**") == 6
    assert "<td>fednext against ease</td><td>ml-1m</td><td>worse</td>" in text
    assert "Not run yet: fedsasrec against fednext, fedsasrec against sasrec." in text
    dual = summary(ROWS, DATA, found).split("## Does dual personalisation help?")[1].split("##")[0]
    assert "| pfedrec against fedmf | no clear difference | ml\u2011100k\u00a0+0.0, ml\u20111m\u00a0+0.0, " in dual
    assert re.search(r"<td>\+0\.00 \[-\d\.\d\d,\u00a0\+\d\.\d\d\]</td><td>1\.000</td><td>\+0\.0</td><td>3</td>", dual)


def test_the_summary_is_written_from_what_is_found(found, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "federec.reproduction.summary.collect", lambda cells, book, may_be_none: asked.extend(cells) or found
    )
    text = write_summary(Book(tmp_path), tmp_path / "out").read_text()
    assert text.startswith("# What survives") and {cell.kind for cell in asked} == {"tuned"}
    assert {cell.seed for cell in asked} == {0, 1, 2, 3, 4}
