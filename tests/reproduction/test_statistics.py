import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federec.reproduction.statistics import bootstrap, gains, holm, paired_tests, verdict


def test_gains_by_hand():
    ranks = np.array([0, 1, 9, 10])
    assert gains(ranks, "hr@10").tolist() == [1, 1, 1, 0]
    assert gains(ranks, "ndcg@10") == pytest.approx([1, 1 / np.log2(3), 1 / np.log2(11), 0])


def test_a_clear_difference_is_found_and_luck_is_not():
    random = np.random.default_rng(1)
    worse, other = random.integers(0, 40, (2, 3, 800))
    better = np.maximum(worse - 6, 0)
    clear, luck = (list(gains(a, "hr@10") - gains(worse, "hr@10")) for a in (better, other))
    for difference in (bootstrap(clear), paired_tests([np.stack(clear)])[0].difference):
        assert difference.verdict(3) == "better" and difference.low > 0.05
        assert difference.mean == pytest.approx((better < 10).mean() - (worse < 10).mean())
    assert paired_tests([-np.stack(clear)])[0].difference.verdict(3) == "worse"
    for difference in (bootstrap(luck), paired_tests([np.stack(luck)])[0].difference):
        assert difference.low < 0 < difference.high and difference.verdict(3) == "no clear difference"


def test_pairing_narrows_the_interval():
    random = np.random.default_rng(2)
    a = random.integers(0, 20, (1, 500))
    b = a.copy()
    b[0, :10] = 30  # ten users lose, all others are the same
    paired, unpaired = (
        paired_tests([gains(a, "hr@10") - gains(other, "hr@10")])[0].difference
        for other in (b, b[:, random.permutation(500)])
    )
    assert paired.high - paired.low < 0.5 * (unpaired.high - unpaired.low)


def test_the_interval_agrees_with_the_bootstrap_and_with_p():
    """Many seeds: nothing is left to borrow, and both estimate the same."""
    random = np.random.default_rng(3)
    table = random.normal(0.02, 1, 400) / 4 + random.normal(0, 0.05, (40, 1)) + random.normal(0, 0.1, (40, 400))
    drawn, (found,) = bootstrap(list(table)), paired_tests([table])
    assert found.difference == pytest.approx(drawn, abs=0.1 * (drawn.high - drawn.low))
    for shift in (found.difference.low, found.difference.high):
        assert paired_tests([table - shift])[0].p == pytest.approx(0.05, abs=1e-6)


def test_p_is_neither_0_nor_undefined():
    same, constant = np.zeros((3, 50)), np.ones((3, 50))
    assert [found.p for found in paired_tests([same])] == [1]
    assert 0 < paired_tests([constant])[0].p < 1e-6
    alone = paired_tests([np.random.default_rng(0).normal(5, 1, (1, 50))])[0]  # one seed: only users are known
    assert 0 < alone.p < 1e-6 and alone.seeds == 1
    assert paired_tests([]) == []


def test_seeds_that_agree_by_luck_borrow_the_variance_of_others():
    random = np.random.default_rng(4)
    users = random.normal(0, 0.1, (1, 300))
    steady = np.repeat(users + 0.05, 3, 0)
    shaky = users + np.array([[-0.3], [0.0], [0.3]])
    assert paired_tests([steady])[0].p < 1e-6 < 0.05 < paired_tests([steady, shaky])[0].p


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("seed_variance", [0.0, 1.0, 10.0], ids=["users only", "half from seeds", "mostly from seeds"])
def test_a_family_without_differences_makes_a_claim_in_about_one_of_twenty_cases(seeds, seed_variance):
    """80 families of 100 comparisons of methods that do not differ; few users gain or lose anything."""
    random, users, wrong = np.random.default_rng(0), 150, 0
    for _ in range(80):
        own = random.normal(size=(100, 1, users)) * (random.random((100, 1, users)) < 0.3)
        luck = random.normal(size=(100, seeds, 1)) * np.sqrt(0.3 * seed_variance * seeds / users)
        wrong += min(holm([found.p for found in paired_tests(list(own + luck))])) < 0.05
    assert wrong <= 9  # 4 expected; 9 or fewer has a chance of 99 %
    if seed_variance == 0:
        assert wrong >= 1


P = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(P, st.randoms(use_true_random=False))
def test_holm_adjusts_upwards_in_the_same_order_whatever_comes_first(p, random):
    adjusted = holm(p)
    assert all(raw <= new <= 1 for raw, new in zip(p, adjusted, strict=True))
    ordered = [new for _, new in sorted(zip(p, adjusted, strict=True))]
    assert ordered == sorted(ordered)
    places = random.sample(range(len(p)), len(p))
    assert holm([p[place] for place in places]) == [adjusted[place] for place in places]


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] == holm([], 5)
    assert holm([0.01, 0.04], 10) == pytest.approx([0.1, 0.36])  # chosen from ten


def test_a_verdict_needs_three_seeds_and_significance():
    assert [verdict(0.1, p, 3) for p in (0.049, 0.05)] == ["better", "no clear difference"]
    assert verdict(-0.1, 0.01, 5) == "worse"
    assert [verdict(-0.1, 0.001, seeds) for seeds in (1, 2)] == ["no claim"] * 2
