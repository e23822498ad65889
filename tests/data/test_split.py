from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federec.data import split as module
from federec.data.interactions import Interactions
from federec.data.split import leave_one_out, make_split, parse_rule
from federec.errors import UserError


def made(pairs, times=None, name="made", parts=None):
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
        parts=None if parts is None else np.array(parts, np.int8),
    )


def of(part, user):
    return part.items[part.ptr[user] : part.ptr[user + 1]].tolist()


def trained(split, user):
    return split.train[split.ptr[user] : split.ptr[user + 1]].tolist()


def same(one, other):
    return all(
        np.array_equal(a, b)
        for a, b in (
            (one.ptr, other.ptr),
            (one.train, other.train),
            *((getattr(one, part).ptr, getattr(other, part).ptr) for part in ("valid", "test")),
            *((getattr(one, part).items, getattr(other, part).items) for part in ("valid", "test")),
        )
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
    split = leave_one_out(data, ties="file")
    for user in range(data.n_users):
        rows = np.flatnonzero(data.users == user)
        newest_first = sorted(rows, key=lambda row: (-data.times[row], row))  # ties: first row
        items = [int(data.items[row]) for row in newest_first]
        train = trained(split, user)
        if len(items) < 3:
            assert of(split.test, user) == of(split.valid, user) == []
            assert train == items[::-1]
        else:
            assert of(split.test, user) + of(split.valid, user) == items[:2]
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
    split = leave_one_out(data, ties="file")
    order = np.lexsort((-np.arange(len(data)), data.times, data.users))
    ordered = made(np.column_stack([data.users, data.items])[order], np.arange(len(data)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ROWS", block)
        assert module._in_order(ordered)
        assert module._in_order(data) == (order.tolist() == list(range(len(data))))
    other = leave_one_out(ordered)
    assert same(split, other)


@settings(max_examples=50, deadline=None)
@given(interactions(timed=False), st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_without_times_the_row_order_does_not_matter(data, seed, random):
    split = leave_one_out(data, seed)
    rows = list(range(len(data)))
    random.shuffle(rows)
    other = leave_one_out(made(np.column_stack([data.users, data.items])[rows]), seed)
    assert same(split, other)
    assert set(split.evaluated) == {u for u in range(data.n_users) if np.sum(data.users == u) >= 3}


@settings(max_examples=50, deadline=None)
@given(interactions(), st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_ties_are_broken_by_the_seed_and_not_by_the_row_order(data, seed, random):
    split = leave_one_out(data, seed)
    rows = list(range(len(data)))
    random.shuffle(rows)
    other = made(np.column_stack([data.users, data.items])[rows], data.times[rows])
    assert same(split, leave_one_out(other, seed))
    for user in range(data.n_users):
        time_of = dict(zip(data.items[data.users == user], data.times[data.users == user], strict=True))
        times = [time_of[item] for item in (*trained(split, user), *of(split.valid, user), *of(split.test, user))]
        assert times == sorted(time_of.values())


@settings(max_examples=50, deadline=None)
@given(interactions())
def test_ties_are_counted(data):
    of_user = [data.times[data.users == user].tolist() for user in range(data.n_users)]
    shared = [times.count(time) > 1 for times in of_user for time in times]
    newest = [times.count(max(times)) > 1 for times in of_user if times]
    assert leave_one_out(data).tied == (sum(shared), sum(newest))
    assert leave_one_out(made(np.column_stack([data.users, data.items]))).tied is None


@settings(max_examples=50, deadline=None)
@given(interactions(), st.sampled_from(["leave-one-out", "ratio:0.6,0.2,0.2"]))
def test_moments_are_equal_where_times_are(data, rule):
    try:
        split = make_split(data, rule)
    except UserError:
        return
    assert make_split(data, rule, ties="file").moments is None
    if split.moments is None:
        assert split.tied.interactions == 0
        return
    when = {(user, item): time for user, item, time in zip(data.users, data.items, data.times, strict=True)}
    for user in range(data.n_users):
        times = [when[user, item] for item in trained(split, user)]
        moments = split.moments[split.ptr[user] : split.ptr[user + 1]].tolist()
        assert [b - a for a, b in pairwise(moments)] == [int(b > a) for a, b in pairwise(times)]


def test_ties_at_random_depend_on_the_seed_and_the_rule_says_so():
    data = made([(user, item) for user in range(50) for item in range(20)], [0] * 1000)
    tests = [leave_one_out(data, seed).test.items for seed in (0, 1)]
    assert (tests[0] != tests[1]).mean() > 0.5
    assert len(set(tests[0])) > 10
    assert leave_one_out(data).rule == "last item by time, equal times at random"
    by_file = leave_one_out(data, ties="file")
    assert by_file.test.items.tolist() == [0] * 50  # the first row counts as the newest
    assert by_file.rule == "last item by time, equal times as in the file"


@settings(max_examples=50, deadline=None)
@given(interactions(), st.sampled_from([None, "ratio:0.5,0.3,0.2"]))
def test_a_fresh_history_ends_with_the_validation_items(data, rule):
    try:
        split = make_split(data, rule)
    except UserError:
        return
    for user in range(data.n_users):
        assert trained(split.fresh, user) == trained(split, user) + of(split.valid, user)
        assert of(split.fresh.valid, user) == []
        assert of(split.fresh.test, user) == of(split.test, user)


def test_without_times_the_seed_matters():
    data = made([(user, item) for user in range(50) for item in range(20)])
    tests = [leave_one_out(data, seed).test.items for seed in (0, 1)]
    assert (tests[0] != tests[1]).mean() > 0.5
    assert len(set(tests[0])) > 10  # and users do not all hold out the same item


def test_nobody_to_evaluate():
    with pytest.raises(UserError, match="no user of 'tiny' has 3 distinct items, so nothing can be held out"):
        leave_one_out(made([(0, 0), (0, 1), (1, 0)], name="tiny"))


@st.composite
def repeated(draw, timed=None):
    """Rows of a few users and items, many pairs repeatedly, with times or without."""
    pairs = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=12, max_size=60))
    timed = draw(st.booleans()) if timed is None else timed
    times = draw(st.lists(st.integers(0, 1000), min_size=len(pairs), max_size=len(pairs))) if timed else None
    return made([(0, 0), *pairs], None if times is None else [0, *times])


def rows_of(split):
    """(user, item) of every interaction in each part."""
    found = []
    for ptr, items in ((split.ptr, split.train), *((part.ptr, part.items) for part in (split.valid, split.test))):
        users = np.repeat(np.arange(split.data.n_users), np.diff(ptr))
        found.append(list(zip(users.tolist(), items.tolist(), strict=True)))
    return found


@settings(max_examples=100, deadline=None)
@given(repeated(), st.sampled_from(["leave-one-out", "time", "ratio", "ratio:0.5,0.2,0.3", "given"]), st.data())
def test_every_interaction_is_in_one_part(data, rule, draw):
    if rule == "given":
        parts = draw.draw(st.lists(st.integers(0, 2), min_size=len(data), max_size=len(data)))
        data = made(np.column_stack([data.users, data.items]), data.times, parts=parts)
    try:
        split = make_split(data, rule, 3)
    except UserError as error:  # nothing left for a part
        assert "\n" not in str(error)
        return
    train, valid, test = rows_of(split)
    assert sorted(train + valid + test) == sorted(zip(data.users.tolist(), data.items.tolist(), strict=True))
    assert len(train) and len(valid) and len(test)
    assert same(split, make_split(data, rule, 3))
    if rule == "given" and (data.parts == 1).any():
        for part, rows in enumerate((train, valid, test)):
            chosen = data.parts == part
            assert sorted(rows) == sorted(zip(data.users[chosen].tolist(), data.items[chosen].tolist(), strict=True))


@settings(max_examples=100, deadline=None)
@given(repeated(timed=True), st.floats(0.1, 0.8), st.floats(0.1, 0.9))
def test_by_time_nobody_trains_on_what_is_held_out_later(data, train, share):
    valid = (1 - train) * share
    try:
        split = make_split(data, f"time:{train},{valid},{1 - train - valid}")
    except UserError as error:
        assert "too many rows share a time" in str(error)
        return
    ends = np.cumsum([len(split.train), len(split.valid)])
    times = np.sort(data.times)
    cuts = times[ends]  # what lies before a cut is in the part before it, whoever's it is
    expected = np.digitize(data.times, cuts)
    for part, rows in enumerate(rows_of(split)):
        chosen = expected == part
        assert sorted(rows) == sorted(zip(data.users[chosen].tolist(), data.items[chosen].tolist(), strict=True))
    assert abs(len(split.train) - train * len(data)) <= np.count_nonzero(data.times == cuts[0]) + 1


@settings(max_examples=100, deadline=None)
@given(repeated(), st.integers(0, 9))
def test_by_ratio_every_user_is_cut_alike_and_trains(data, seed):
    try:
        split = make_split(data, "ratio:0.6,0.2,0.2", seed, ties="file")
    except UserError as error:
        assert "users have too few interactions" in str(error)
        return
    for user in range(data.n_users):
        count = int(np.sum(data.users == user))
        held = min(int(count * 0.2 + 0.5), count - 1) if count else 0
        assert len(of(split.test, user)) == held
        assert len(of(split.valid, user)) == min(held, count - 1 - held if count else 0)
        if count:
            assert trained(split, user)
        if data.times is not None and count:
            rows = sorted(np.flatnonzero(data.users == user), key=lambda row: (data.times[row], -row))
            in_order = data.items[rows].tolist()
            assert trained(split, user) + of(split.valid, user) + of(split.test, user) == in_order


def test_the_words_of_each_rule():
    day, noon = 86400, 11000 * 86400 + 43200
    pairs = [(user, item) for user in range(4) for item in range(10)]
    data = made(pairs, [noon + day * (n % 10) for n in range(40)])
    untimed = made(pairs)
    assert make_split(data).rule == "last item by time"
    assert make_split(untimed).rule == "random: no time column"
    # 40 interactions on 10 days: the cuts are the 9th and the 10th day
    expected = "by global time: training before 2000-02-21 12:00, test from 2000-02-22 12:00"
    assert make_split(data, "time").rule == expected
    at_midnight = made(pairs, data.times - 43200)
    assert make_split(at_midnight, "time").rule.endswith("training before 2000-02-21, test from 2000-02-22")
    in_milliseconds = made(pairs, 1000 * data.times)
    assert make_split(in_milliseconds, "time").rule == expected
    assert make_split(made(pairs, np.arange(40)), "time").rule == "by global time: training before 32, test from 36"
    assert make_split(data, "ratio").rule == "by ratio 0.8, 0.1, 0.1, each user's newest for test"
    assert make_split(untimed, "ratio").rule == "by ratio 0.8, 0.1, 0.1, random: no time column"


def test_the_data_says_its_parts():
    pairs = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (2, 1)]
    parts = [0, 2, 1, 2, 0, 0, 2]
    split = make_split(made(pairs, range(7), parts=parts))
    assert split.rule == "given by the data"
    assert [trained(split, user) for user in range(3)] == [[0], [4, 5], []]
    assert [of(split.valid, user) for user in range(3)] == [[2], [], []]
    assert [of(split.test, user) for user in range(3)] == [[1, 3], [], [1]]
    assert split.test.first(np.arange(3)).tolist() == [1, -1, 1]
    assert split.evaluated.tolist() == [0, 2]
    assert split.summary() == {
        "split": "given by the data",
        "held_out": {"valid": 1, "test": 3},
        "tied": {"interactions": 0, "newest": 0},
        "users_not_evaluated": 1,
        "cold_users": 1,
        "cold_items": 2,
    }
    assert make_split(made(pairs, range(7), parts=parts), "ratio:0.4,0.3,0.3").rule.startswith("by ratio")


def test_parts_without_validation():
    """Each user's newest training item validates, where the user has another."""
    pairs = [(0, 0), (0, 1), (0, 2), (1, 4), (1, 5)]
    split = make_split(made(pairs, [3, 2, 1, 1, 2], parts=[0, 0, 2, 0, 2]))
    assert [trained(split, user) for user in range(2)] == [[1], [4]]
    assert [of(split.valid, user) for user in range(2)] == [[0], []]
    assert split.rule == "given by the data; validation: the newest training item of each user"
    assert make_split(made(pairs, parts=[0, 0, 2, 0, 2])).rule.endswith("a random training item of each user")


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("tiem", "unknown split 'tiem' - did you mean 'time'?"),
        ("nothing", "unknown split 'nothing' (known: given, leave-one-out, ratio, time)"),
        ("time:0.8,0.2", "split 'time:0.8,0.2': not three fractions; write for example time:0.8,0.1,0.1"),
        ("ratio:a,b,c", "split 'ratio:a,b,c': not three fractions"),
        ("ratio:0.8,0.1,0.2", "the fractions for training, validation and test must be above 0 and sum to 1"),
        ("ratio:0.9,0,0.1", "must be above 0 and sum to 1"),
        ("ratio:nan,0.1,0.1", "must be above 0 and sum to 1"),
        ("given:0.8,0.1,0.1", "'given' has no fractions"),
    ],
)
def test_rules_that_make_no_sense(rule, said):
    with pytest.raises(UserError) as error:
        parse_rule(rule)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rule", "values", "said"),
    [
        ("time", {}, "'made' has no time column, so it cannot be split by time; use --split ratio"),
        ("given", {}, "'made' says no parts; give the column with --columns split=NAME"),
        ("time", {"times": [1] * 6}, "leaves nothing for training: too many rows share a time"),
        ("ratio", {}, "leaves nothing for validation: users have too few interactions"),
        ("given", {"parts": [0, 0, 1, 0, 1, 1]}, "leaves nothing for test: the data marks no such row"),
        ("given", {"parts": [2, 2, 1, 1, 1, 1]}, "leaves nothing for training"),
    ],
)
def test_data_that_a_rule_cannot_split(rule, values, said):
    with pytest.raises(UserError) as error:
        make_split(made([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)], **values), rule)
    assert said in str(error.value) and "\n" not in str(error.value)


@settings(max_examples=50, deadline=None)
@given(repeated(), st.integers(1, 3))
def test_distinct_items_in_the_order_of_their_newest_interaction(data, block):
    try:
        split = make_split(data, "ratio:0.6,0.2,0.2")
    except UserError:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_USERS", block)
        ptr, items, *_ = split.distinct
    for user in range(data.n_users):
        expected = list(dict.fromkeys(trained(split, user)[::-1]))[::-1]
        assert items[ptr[user] : ptr[user + 1]].tolist() == expected
    for held_out in (False, True):
        ptr, items = split.history(held_out)
        for user in range(data.n_users):
            known = set(trained(split, user))
            if held_out:
                known |= {*of(split.valid, user), *of(split.test, user)}
            assert items[ptr[user] : ptr[user + 1]].tolist() == sorted(known)


def test_without_times_every_occurrence_of_a_repeated_item_may_be_held_out():
    data = made([(user, item) for user in range(200) for item in (0, 0, 0, 1, 2)])
    split = leave_one_out(data)
    both = [tuple(of(split.valid, user) + of(split.test, user)) for user in range(200)]
    assert 0.15 < np.mean([pair == (0, 0) for pair in both]) < 0.45  # 3/5 * 2/4
    assert 0.4 < np.mean([pair[1] == 0 for pair in both]) < 0.8  # 3/5
