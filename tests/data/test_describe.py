import numpy as np

from federec.data.describe import describe, reading, remarks
from federec.data.interactions import Interactions
from federec.data.sets import load


def made(**other):
    users = np.array([0, 0, 0, 1, 1, 2], np.int32)
    items = np.array([0, 1, 2, 0, 1, 0], np.int32)
    return Interactions("made", users, items, np.arange(3), np.arange(3), sha256="ab", source_rows=8, **other)


def test_counts():
    found = describe(made())
    assert (found["users"], found["items"], found["interactions"], found["merged_duplicates"]) == (3, 3, 6, 2)
    assert found["density"] == 6 / 9
    assert found["per_user"] == {"min": 1, "median": 2, "mean": 2, "max": 3}
    assert found["per_item"] == {"min": 1, "median": 2, "mean": 2, "max": 3}
    assert found["top_10_percent_items_share"] == 0.5
    assert found["users_not_evaluated"] == 2
    assert (found["ratings"], found["times"], found["users_with_tied_newest"]) == (None, None, None)
    assert found["sha256"] == "ab"


def test_times_and_ratings():
    times = np.array([5, 9, 9, 3, 4, 0], float)
    found = describe(made(times=times, ratings=np.array([1, np.nan, 5, 2, 2, 2], np.float32)))
    assert found["users_with_tied_newest"] == 1
    assert found["ratings"] == [1, 5]
    assert found["times"] == ["1970-01-01T00:00:00+00:00", "1970-01-01T00:00:09+00:00"]


def test_times_in_milliseconds_and_times_that_are_no_dates():
    times = np.full(6, 1_304_892_000_000.0)
    assert describe(made(times=times))["times"][0] == "2011-05-08T22:00:00+00:00"
    assert describe(made(times=times * 1e6))["times"][0] == "1.30489e+18"


def test_what_was_read_as_what():
    times = np.array([5, 9, 9, 3, 4, 0], float)
    data = made(
        times=times, columns={"user": "who", "timestamp": "when"}, unused=("text",), titles={"0": "Zero", "7": "x"}
    )
    found = describe(data)
    assert (found["columns"], found["unused_columns"]) == ({"user": "who", "timestamp": "when"}, ["text"])
    assert found["share_of_tied_events"] == 2 / 6 and found["items_with_title"] == 1
    assert found["split"] == "last item by time, equal times at random"
    assert describe(made())["split"] == "random: no time column"
    parts = made(parts=np.array([0, 0, 2, 0, 1, 0], np.int8))
    assert describe(parts)["split"] == "given by the data; rows: 4 for training, 1 for validation, 1 for test"
    assert reading(data).items() <= found.items()


def test_remarks_are_what_changes_the_numbers():
    times = np.arange(6.0)
    quiet = made(times=times, known_before=2)
    assert remarks(Interactions("x", quiet.users, quiet.items, quiet.user_ids, quiet.item_ids, times)) == []
    assert remarks(quiet) == ["made: left out 2 held-out rows whose (user, item) pair is in an earlier part"]
    said = remarks(made(below=4, unused=("text", "foo"), maybe_time="foo"))
    assert said == [
        "made: merged 2 repeated (user, item) rows; --repeats keep keeps them",
        "made: left out 4 rows whose rating is too low or blank",
        "made: unused columns: 'text', 'foo'",
        "made: 'foo' looks like a time; use it with --columns timestamp=foo",
        "made: no time column, so held-out items are drawn at random",
    ]
    assert "made: kept 1,234 repeated (user, item) rows" in remarks(made(times=times, repeats=True, repeated=1234))
    assert not any("random" in words for words in remarks(made(parts=np.zeros(6, np.int8))))


def test_the_built_in_set_needs_no_remark():
    assert remarks(load("tastes")) == []


def test_users_without_a_test_item_are_those_of_the_split():
    parts = made(parts=np.array([0, 2, 1, 0, 2, 0], np.int8))
    assert describe(parts)["users_not_evaluated"] == 1  # the second user has only two rows, but one is for test
    untested = describe(made(parts=np.array([0, 0, 1, 0, 0, 0], np.int8)))
    assert untested["users_not_evaluated"] == 3 and untested["split"].endswith("add --test-file")
    assert describe(made(times=np.arange(6.0)), "ratio:0.4,0.3,0.3")["users_not_evaluated"] == 1


def test_remarks_for_python_name_arguments():
    said = remarks(made(unused=("foo",), maybe_time="foo"), in_python=True)
    assert said[0] == 'made: merged 2 repeated (user, item) rows; repeats="keep" keeps them'
    assert said[2] == "made: 'foo' looks like a time; use it with columns={'timestamp': 'foo'}"
