import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federec.evaluation.evaluator import Evaluator
from federec.evaluation.selection import ENOUGH, LEAST, Sample, SampleRanks, Selection, schedule


@pytest.fixture(scope="module")
def evaluator(split_of):
    """A hundred users; two have too short a history to be evaluated, one has every item."""
    rng = np.random.default_rng(0)
    lengths = [1, 2, 60, *rng.integers(3, 30, 97)]
    return Evaluator(split_of([rng.permutation(60)[:n] for n in lengths], 60), 0)


@pytest.fixture(scope="module")
def table():
    """A score for every (user, item), with ties and some that are no numbers."""
    scores = np.random.default_rng(1).integers(0, 40, (100, 60)).astype(np.float32)
    scores[np.random.default_rng(2).random(scores.shape) < 0.02] = np.nan
    return torch.from_numpy(scores)


def rank(ranks, table, users):
    for some in users.split(7):
        ranks.add(some, lambda items, some=some: table[some].gather(1, items))
    return ranks


def test_a_sample_has_the_ranks_that_ranking_everybody_gives(evaluator, table):
    sample = Sample(evaluator, 30, 0)
    assert len(sample.users) == 30
    found = rank(SampleRanks(sample), table, sample.users.flip(0)).valid
    everybody = rank(evaluator.full(), table, evaluator.users).valid
    assert torch.equal(found, everybody[evaluator.row[sample.users]])


def test_a_sample_is_fixed_by_the_seed(evaluator):
    samples = [set(Sample(evaluator, 30, seed).users.tolist()) for seed in (0, 0, 1)]
    assert samples[0] == samples[1] != samples[2]
    assert set(Sample(evaluator, 1000, 0).users.tolist()) == set(evaluator.users.tolist())


def test_only_due_rounds_are_ranked_and_the_last_always(evaluator):
    few = Selection(evaluator, 0, samples=0.0, rounds=103)
    assert few.schedule == (98, 5)
    assert [round_ for round_ in range(1, 104) if few.rankings(round_)] == sorted(
        {*range(5, 103, 5), 103, 1, 4, 16, 64}
    )
    assert not any(Selection(evaluator, 0, 1e9, rounds=0).rankings(round_) for round_ in range(1, 9))


@given(
    samples=st.floats(0, 1e9), evaluated=st.integers(1, 10**6), items=st.integers(2, 10**6), rounds=st.integers(1, 1000)
)
def test_a_schedule_ranks_enough_users_in_enough_rounds(samples, evaluated, items, rounds):
    users, every = schedule(samples, evaluated, items, rounds)
    assert min(LEAST, evaluated) <= users <= evaluated
    assert 1 <= every <= max(1, rounds // 10)


def test_short_runs_rank_enough_users_in_every_round():
    assert schedule(1000, 8000, 12_000, 19) == (ENOUGH, 1)
    assert schedule(1e9, 8000, 12_000, 1000) == (8000, 1)


@pytest.mark.parametrize(
    ("samples", "evaluated", "items", "expected"),
    [
        (500_000, 943, 1_682, (673, 10)),  # ML-100K: most users, now and then
        (5_000_000, 6_040, 3_706, (1_170, 4)),  # ML-1M
        (240_000, 8_072, 11_830, (190, 10)),  # Amazon-Video: short histories, a large catalogue
    ],
)
def test_schedules_of_known_sets(samples, evaluated, items, expected):
    assert schedule(samples, evaluated, items, 100) == expected


@pytest.mark.parametrize(("patience", "expected"), [(None, 10), (1000, 10), (20, 5), (7, 1), (1, 1)])
def test_a_run_with_patience_is_ranked_four_times_in_so_many_rounds(patience, expected):
    users, every = schedule(240_000, 8_072, 11_830, 100, patience)
    assert (users, every) == (LEAST, expected)  # more rounds, not more users
