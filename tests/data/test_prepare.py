from collections import Counter

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
