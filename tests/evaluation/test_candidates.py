import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federec.data.sets import load
from federec.data.split import leave_one_out
from federec.evaluation import candidates
from federec.evaluation.candidates import sample


@settings(max_examples=100)
@given(st.data(), st.integers(3, 30), st.integers(0, 2**40), st.integers(1, 6))
def test_candidates_are_distinct_untouched_items(split_of, data, n_items, seed, count):
    sizes = [3, *data.draw(st.lists(st.integers(1, n_items), max_size=5))]
    histories = [data.draw(st.permutations(range(n_items)))[:size] for size in sizes]
    got = sample(split_of(histories, n_items), seed, count)
    evaluated = [u for u, history in enumerate(histories) if len(history) >= 3]
    assert got.users.tolist() == evaluated
    for row, user in enumerate(evaluated):
        untouched = set(range(n_items)) - set(histories[user])
        others = {}
        for name, codes, target in (("valid", got.valid, -2), ("test", got.test, -1)):
            first, *rest = codes[row].tolist()
            real = [item for item in rest if item >= 0]
            assert len(rest) == count and first == histories[user][target]
            assert rest == real + [-1] * (count - len(real))
            assert len(real) == len(set(real)) == min(count, len(untouched))
            assert set(real) <= untouched
            others[name] = set(real)
        overlap = others["valid"] & others["test"]
        assert len(overlap) == max(0, min(2 * count - len(untouched), len(untouched)))


def test_ninety_nine_each_by_default(random_split):
    got = sample(random_split(users=5, items=300), 0)
    assert got.valid.shape == got.test.shape == (5, 100)
    assert min(got.valid.min(), got.test.min()) >= 0


def test_a_pure_function_of_the_seed_and_the_user(split_of):
    histories = [[1, 2, 3, 4], [5, 6, 7], [9, 8, 0, 3, 2]]
    first = sample(split_of(histories, 400), 3)
    again, other = sample(split_of(histories, 400), 3), sample(split_of(histories, 400), 4)
    fewer = sample(split_of(histories[:2], 400), 3)
    assert torch.equal(first.valid, again.valid) and torch.equal(first.test, again.test)
    assert torch.equal(first.test[:2], fewer.test)
    assert not torch.equal(first.valid, other.valid) and not torch.equal(first.test, other.test)
    assert not torch.equal(first.valid[0, 1:], first.valid[1, 1:])


@pytest.mark.parametrize("part", ["valid", "test"])
def test_close_to_uniform_over_items_and_places(split_of, part):
    """2,000 users with one history: every untouched item comes up alike, in any one place too."""
    n_items, count, users = 20, 4, 2000
    got = getattr(sample(split_of([[3, 0, 19, 7]] * users, n_items), 1, count), part)[:, 1:].numpy()
    open_items = [i for i in range(n_items) if i not in (3, 0, 19, 7)]
    for items, expected in ((got, users * count / 16), (got[:, 0], users / 16), (got[:, -1], users / 16)):
        counts = np.bincount(items.ravel(), minlength=n_items)[open_items]
        assert counts.sum() == items.size
        assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


@pytest.mark.thorough
@pytest.mark.parametrize("block", [1, 100, 10_000])
def test_the_candidates_are_those_of_the_first_release_whatever_the_block(monkeypatch, block):
    """Results of different releases stay comparable: this hash was taken from the code that drew for all at once."""
    monkeypatch.setattr(candidates, "_USERS", block)
    got = sample(leave_one_out(load("tastes"), 5, ties="file"), 7)
    digest = hashlib.sha256()
    for part in (got.users, got.valid, got.test):
        digest.update(part.long().numpy().tobytes())
    assert digest.hexdigest().startswith("c7dda08967e9e822")


def test_a_few_users_draw_what_they_draw_among_many(random_split, monkeypatch):
    split = random_split(users=40, items=250, least=3, most=60)
    many = sample(split, 2)
    monkeypatch.setattr(candidates, "_FEW", 1000)
    few = sample(split, 2)
    assert torch.equal(few.valid, many.valid) and torch.equal(few.test, many.test)


def test_a_sample_of_users_has_the_candidates_they_always_have(random_split):
    split = random_split(users=300)
    everyone, some, others = sample(split, 3), sample(split, 3, most=40), sample(split, 4, most=40)
    assert len(some.users) == 40 and some.users.tolist() == sorted(set(some.users.tolist()))
    assert torch.equal(some.valid, everyone.valid[some.users]) and torch.equal(some.test, everyone.test[some.users])
    assert some.users.tolist() != others.users.tolist()
    assert torch.equal(sample(split, 3, most=300).test, everyone.test)
    assert abs(np.mean([sample(split, seed, most=40).users.float().mean() for seed in range(40)]) - 149.5) < 10
