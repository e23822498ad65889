import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federec.data import split as module
from federec.data.interactions import Interactions
from federec.data.split import leave_one_out
from federec.errors import UserError


def made(pairs, times=None, name="made"):
    """Interactions from (user, item) pairs of small integers."""
    users, items = np.array(pairs, np.int32).reshape(-1, 2).T
    return Interactions(
        name=name,
        users=users,
        items=items,
        user_ids=np.arange(users.max(initial=-1) + 1),
        item_ids=np.arange(items.max(initial=-1) + 1),
        times=None if times is None else np.array(times, np.float64),
        source_rows=len(users),
    )


@st.composite
def interactions(draw, timed=True):
    pairs = draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12)), min_size=1, unique=True))
    pairs += [(0, item) for item in (20, 21, 22)]  # at least one user can be evaluated
    pairs = draw(st.permutations(pairs))
    times = draw(st.lists(st.integers(-3, 3), min_size=len(pairs), max_size=len(pairs))) if timed else None
    return made(pairs, times)


@settings(max_examples=100, deadline=None)
@given(interactions())
def test_the_two_newest_are_held_out_and_nothing_is_lost(data):
    split = leave_one_out(data)
    for user in range(data.n_users):
        rows = np.flatnonzero(data.users == user)
        newest_first = sorted(rows, key=lambda row: (-data.times[row], row))  # ties: first row
        items = [int(data.items[row]) for row in newest_first]
        train = split.train[split.ptr[user] : split.ptr[user + 1]].tolist()
        if len(items) < 3:
            assert (split.test[user], split.valid[user]) == (-1, -1)
            assert train == items[::-1]
        else:
            assert [split.test[user], split.valid[user]] == items[:2]
            assert train == items[:1:-1]


@settings(max_examples=50, deadline=None)
@given(interactions(), st.booleans())
def test_history_is_sorted_and_complete(data, with_held_out):
    split = leave_one_out(data)
    ptr, items = split.history(with_held_out)
    for user in range(data.n_users):
        expected = set(split.train[split.ptr[user] : split.ptr[user + 1]].tolist())
        if with_held_out:
            expected = set(data.items[data.users == user].tolist())
        assert items[ptr[user] : ptr[user + 1]].tolist() == sorted(expected)


@settings(max_examples=50, deadline=None)
@given(interactions(), st.booleans(), st.lists(st.integers(0, 6)), st.integers(1, 3))
def test_history_of_some_users_in_blocks_of_any_size(data, with_held_out, users, block):
    split = leave_one_out(data)
    users = np.array([user for user in users if user < data.n_users], np.int64)
    ptr, items = split.history(with_held_out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_USERS", block)
        own_ptr, own = split.history(with_held_out, users)
    assert own.dtype == np.int32 and len(own_ptr) == len(users) + 1
    for row, user in enumerate(users):
        assert own[own_ptr[row] : own_ptr[row + 1]].tolist() == items[ptr[user] : ptr[user + 1]].tolist()


@settings(max_examples=50, deadline=None)
@given(interactions(), st.integers(1, 4))
def test_rows_that_stand_in_order_are_split_as_if_they_were_sorted(data, block):
    split = leave_one_out(data)
    order = np.lexsort((-np.arange(len(data)), data.times, data.users))
    ordered = made(np.column_stack([data.users, data.items])[order], np.arange(len(data)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ROWS", block)
        assert module._in_order(ordered)
        assert module._in_order(data) == (order.tolist() == list(range(len(data))))
    other = leave_one_out(ordered)
    for part in ("ptr", "train", "valid", "test"):
        assert np.array_equal(getattr(split, part), getattr(other, part))


@settings(max_examples=50, deadline=None)
@given(interactions(timed=False), st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_without_times_the_row_order_does_not_matter(data, seed, random):
    split = leave_one_out(data, seed)
    rows = list(range(len(data)))
    random.shuffle(rows)
    other = leave_one_out(made(np.column_stack([data.users, data.items])[rows]), seed)
    assert np.array_equal(split.test, other.test) and np.array_equal(split.valid, other.valid)
    assert np.array_equal(split.train, other.train)
    assert set(split.evaluated) == {u for u in range(data.n_users) if np.sum(data.users == u) >= 3}


def test_without_times_the_seed_matters():
    data = made([(user, item) for user in range(50) for item in range(20)])
    tests = [leave_one_out(data, seed).test for seed in (0, 1)]
    assert (tests[0] != tests[1]).mean() > 0.5
    assert len(set(tests[0])) > 10  # and users do not all hold out the same item


def test_nobody_to_evaluate():
    with pytest.raises(UserError, match="no user of 'tiny' has 3 distinct items, so nothing can be held out"):
        leave_one_out(made([(0, 0), (0, 1), (1, 0)], name="tiny"))
