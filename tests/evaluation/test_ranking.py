import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from federec.evaluation.ranking import TOP, full_ranks, sampled_ranks

NAN, INF = math.nan, math.inf
scores_ = st.one_of(st.integers(-3, 3).map(float), st.sampled_from([NAN, INF, -INF]))


def beaten_by(target, others):
    """0-based rank in plain Python: whoever is not strictly below the target stands above it."""
    return sum(not other < target for other in others)


def ranks(rows, candidates=None):
    scores = torch.tensor(rows)
    codes = torch.arange(scores.shape[1]).expand_as(scores) if candidates is None else torch.tensor(candidates)
    return sampled_ranks(scores, codes).tolist()


def test_worked_by_hand():
    assert ranks([[2.0, 1.0, 3.0, 0.0], [9.0, 1.0, 3.0, 0.0], [-1.0, 1.0, 3.0, 0.0]]) == [1, 0, 3]


def test_a_tie_counts_against_the_held_out_item():
    assert ranks([[1.0, 1.0, 0.0, 1.0]]) == [2]
    assert ranks([[0.0] * 100]) == [99]


def test_a_score_that_is_not_a_number_never_helps_the_held_out_item():
    assert ranks([[NAN, 1.0, 2.0], [1.0, NAN, 0.0], [NAN, NAN, NAN], [INF, INF, 0.0]]) == [2, 1, 2, 1]


def test_missing_candidates_do_not_count():
    assert ranks([[1.0, 2.0, 3.0, 4.0], [NAN, 0.0, 9.0, 9.0]], [[5, 6, -1, -1], [5, 6, -1, -1]]) == [1, 1]


@given(st.lists(st.lists(scores_, min_size=6, max_size=6), min_size=1, max_size=5), st.data())
def test_sampled_ranks_against_a_loop(rows, data):
    present = [data.draw(st.lists(st.booleans(), min_size=5, max_size=5)) for _ in rows]
    candidates = [[0, *(k + 1 if here else -1 for k, here in enumerate(row))] for row in present]
    expected = [
        beaten_by(row[0], [s for s, here in zip(row[1:], there, strict=True) if here])
        for row, there in zip(rows, present, strict=True)
    ]
    assert ranks(rows, candidates) == expected


@given(st.data(), st.integers(3, 30), st.integers(1, 4))
def test_full_ranks_against_a_loop(data, n_items, users):
    rows, held, trains = [], [], []
    for _ in range(users):
        order = data.draw(st.permutations(range(n_items)))
        rows.append(data.draw(st.lists(scores_.filter(lambda s: s != -INF), min_size=n_items, max_size=n_items)))
        held.append(order[:2])
        trains.append(order[2 : 2 + data.draw(st.integers(1, n_items - 2))])
    pairs = torch.tensor([(u, item) for u, train in enumerate(trains) for item in train]).T
    valid, test = ((torch.arange(users), items) for items in torch.tensor(held).T)
    got = full_ranks(torch.tensor(rows), (pairs[0], pairs[1]), valid, test)
    for u, (row, (v, t), train) in enumerate(zip(rows, held, trains, strict=True)):
        open_items = [i for i in range(n_items) if i not in train]
        if math.isnan(row[v]):
            assert got.valid[u] >= len(open_items) - 1  # last
        else:
            assert got.valid[u] == beaten_by(row[v], [row[i] for i in open_items if i != v])
        if math.isnan(row[t]):
            assert got.test[u] >= len(open_items) - 2
        else:
            assert got.test[u] == beaten_by(row[t], [row[i] for i in open_items if i not in (v, t)])
        listed = got.lists[u].tolist()
        known = {*train, v}
        real = [i for i in listed if i >= 0]
        assert len(listed) == min(TOP, n_items)
        assert listed[: len(real)] == real
        assert len(set(real)) == len(real) == min(TOP, n_items - len(known))
        assert not set(real) & known
        numbers = [row[i] for i in real if not math.isnan(row[i])]
        assert numbers == sorted(numbers, reverse=True)


def test_lists_are_the_best_unknown_items():
    scores = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0]])
    got = full_ranks(scores, *((torch.tensor([0]), torch.tensor([item])) for item in (0, 2, 4)))
    assert (got.valid.tolist(), got.test.tolist()) == ([1], [2])
    assert got.lists.tolist() == [[1, 3, 4, -1, -1]]


@given(st.data(), st.integers(2, 12), st.integers(1, 5))
def test_several_held_out_items_are_places_in_one_list(data, n_items, users):
    """Against a list sorted in plain Python, without ties; parts may overlap, as where repeats are kept."""
    some = st.lists(st.integers(0, n_items - 1), max_size=4, unique=True)
    rows = [data.draw(st.permutations([float(i) for i in range(n_items)])) for _ in range(users)]
    parts = [[data.draw(some) for _ in range(users)] for _ in range(3)]
    pairs = [
        tuple(
            torch.tensor([(u, item) for u, items in enumerate(part) for item in items], dtype=torch.int64).view(-1, 2).T
        )
        for part in parts
    ]
    got = full_ranks(torch.tensor(rows), *pairs)
    for found, held, known in ((got.valid, parts[1], parts[:1]), (got.test, parts[2], parts[:2])):
        expected = []
        for user, own in enumerate(held):
            closed = {item for part in known for item in part[user]} - set(own)
            listed = sorted(set(range(n_items)) - closed, key=lambda item: -rows[user][item])
            expected += [listed.index(item) for item in own]
        assert found.tolist() == expected


def test_held_out_items_of_equal_score_come_last_together():
    scores = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    nothing = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    got = full_ranks(scores, nothing, nothing, (torch.tensor([0, 0]), torch.tensor([0, 2])))
    assert got.test.tolist() == [2, 2]
