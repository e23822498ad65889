import numpy as np

from federec.data.describe import describe
from federec.data.interactions import Interactions


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
