from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federec.data.prepare import Filters, Rows, prepare
from federec.errors import UserError

triples = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=40)


def rows(given, timed=True):
    users, items, times = np.array(given).T
    labels = np.array([f"label {i}" for i in range(6)], object)
    ratings = np.arange(len(users), dtype=np.float32)  # tells which row was kept
    return Rows(users, items, labels, labels, times.astype(float) if timed else None, ratings)


def labelled(data):
    return list(zip(data.user_ids[data.users], data.item_ids[data.items], strict=True))


@settings(max_examples=100, deadline=None)
@given(triples, st.booleans())
def test_of_a_repeated_pair_the_newest_row_stays(given, timed):
    data = prepare(rows(given, timed), "made")
    kept = {}
    for row, (user, item, time) in enumerate(given):
        if (user, item) not in kept or (timed and time > given[kept[user, item]][2]):
            kept[user, item] = row
    assert data.ratings.tolist() == sorted(kept.values())
    assert data.merged == len(given) - len(kept)


@settings(max_examples=100, deadline=None)
@given(triples)
def test_codes_follow_first_appearance(given):
    data = prepare(rows(given), "made")
    assert data.user_ids.tolist() == [f"label {u}" for u in dict.fromkeys(u for u, _, _ in given)]
    assert data.item_ids.tolist() == [f"label {i}" for i in dict.fromkeys(i for _, i, _ in given)]
    assert set(labelled(data)) == {(f"label {u}", f"label {i}") for u, i, _ in given}
    assert data.users.dtype == data.items.dtype == np.int32


@settings(max_examples=100, deadline=None)
@given(triples, st.integers(1, 4))
def test_the_filter_counts_rows_once(given, least):
    counts = Counter(user for user, _, _ in given)
    kept = [row for row in given if counts[row[0]] >= least]
    if not kept:
        with pytest.raises(UserError, match=f"no user of 'made' has {least} rows .* lower --min-interactions"):
            prepare(rows(given), "made", filters=Filters(min_interactions=least))
        return
    data = prepare(rows(given), "made", filters=Filters(min_interactions=least))
    assert data.source_rows == len(kept)
    assert set(labelled(data)) == {(f"label {u}", f"label {i}") for u, i, _ in kept}


@settings(max_examples=100, deadline=None)
@given(triples, st.integers(1, 4))
def test_the_core_is_the_largest_set_with_k_partners_each(given, k):
    pairs = {(user, item) for user, item, _ in given}
    while True:
        users, items = Counter(u for u, _ in pairs), Counter(i for _, i in pairs)
        smaller = {(u, i) for u, i in pairs if users[u] >= k and items[i] >= k}
        if smaller == pairs:
            break
        pairs = smaller
    if not pairs:
        with pytest.raises(UserError, match=f"the {k}-core of 'made' is empty; lower --k-core"):
            prepare(rows(given), "made", filters=Filters(k_core=k))
        return
    data = prepare(rows(given), "made", filters=Filters(k_core=k))
    assert set(labelled(data)) == {(f"label {u}", f"label {i}") for u, i in pairs}
    assert data.source_rows == sum((u, i) in pairs for u, i, _ in given)


def parted(given, parts, **filters):
    return prepare(replace(rows(given), parts=np.array(parts, np.int8)), "made", filters=Filters(**filters))


@settings(max_examples=100, deadline=None)
@given(triples)
def test_kept_repeats_are_counted(given):
    data = prepare(rows(given), "made", filters=Filters(keep_repeats=True))
    assert len(data) == data.source_rows == len(given) and data.repeats and data.merged == 0
    assert data.ratings.tolist() == list(range(len(given)))
    assert data.repeated == len(given) - len({(user, item) for user, item, _ in given})


@settings(max_examples=100, deadline=None)
@given(triples, st.data())
def test_a_pair_of_several_parts_stays_in_the_earliest(given, data):
    parts = data.draw(st.lists(st.integers(0, 2), min_size=len(given), max_size=len(given)))
    found = parted(given, parts)
    kept, seen = {}, set()
    for row, (user, item, time) in enumerate(given):
        seen.add((user, item, parts[row]))
        key = (-parts[row], time)
        if (user, item) not in kept or key > kept[user, item][0]:
            kept[user, item] = key, row
    assert found.ratings.tolist() == sorted(row for _, row in kept.values())
    assert found.parts.tolist() == [parts[int(row)] for row in found.ratings]
    assert found.known_before == len(seen) - len(kept)
    assert found.merged == len(given) - len(seen)
    every = parted(given, parts, keep_repeats=True)
    assert every.parts.tolist() == parts and (every.known_before, every.merged) == (0, 0)


@settings(max_examples=100, deadline=None)
@given(triples, st.integers(0, 5), st.integers(0, 3))
def test_ratings_filter_before_histories_are_counted(given, least, longest):
    made = rows(given)
    stars = np.array([np.nan if time == 3 else user for user, _, time in given], np.float32)
    rated = [row for row, (user, _, time) in enumerate(given) if time != 3 and user >= least]
    counts = Counter(given[row][0] for row in rated)
    left = [row for row in rated if counts[given[row][0]] >= longest]
    filters = Filters(min_rating=least, min_interactions=longest, keep_repeats=True)
    if not left:
        with pytest.raises(UserError, match=r"(lower|leave out) --min-"):
            prepare(replace(made, ratings=stars), "made", filters=filters)
        return
    data = prepare(replace(made, ratings=stars), "made", filters=filters)
    assert labelled(data) == [(f"label {given[row][0]}", f"label {given[row][1]}") for row in left]
    assert data.below == len(given) - len(rated)


def test_ratings_are_compared_as_they_are_written():
    stars = np.array([3.6, 3.7, 3.8], np.float32)
    data = prepare(replace(rows([(0, 0, 0), (0, 1, 0), (0, 2, 0)]), ratings=stars), "made", filters=Filters(3.7))
    assert len(data) == 2
    with pytest.raises(
        UserError, match=r"no row of 'made' is rated 4 or higher \(the highest is 3\.8\); lower --min-rating"
    ):
        prepare(replace(rows([(0, 0, 0), (0, 1, 0), (0, 2, 0)]), ratings=stars), "made", filters=Filters(4))
    with pytest.raises(UserError, match="'made' has no ratings to compare with 4; leave out --min-rating"):
        prepare(replace(rows([(0, 0, 0)]), ratings=None), "made", filters=Filters(4))
