import numpy as np
import pytest

from federec.reproduction.statistics import gains, paired_difference


def test_gains_by_hand():
    ranks = np.array([0, 1, 9, 10])
    assert gains(ranks, "hr@10").tolist() == [1, 1, 1, 0]
    assert gains(ranks, "ndcg@10") == pytest.approx([1, 1 / np.log2(3), 1 / np.log2(11), 0])


def test_a_clear_difference_is_found_and_luck_is_not():
    random = np.random.default_rng(1)
    worse = random.integers(0, 40, (3, 800))
    better = np.maximum(worse - 6, 0)
    clear = paired_difference(better, worse, "hr@10")
    assert clear.verdict == "better" and clear.low > 0.05
    assert clear.mean == pytest.approx((better < 10).mean() - (worse < 10).mean())
    assert paired_difference(worse, better, "ndcg@10").verdict == "worse"
    other = random.integers(0, 40, (3, 800))
    luck = paired_difference(other, worse, "hr@10")
    assert luck.low < 0 < luck.high and luck.verdict == "no clear difference"


def test_pairing_narrows_the_interval():
    random = np.random.default_rng(2)
    a = random.integers(0, 20, (1, 500))
    b = a.copy()
    b[0, :10] = 30  # ten users lose, all others are the same
    paired = paired_difference(a, b, "hr@10")
    unpaired = paired_difference(a, b[:, random.permutation(500)], "hr@10")
    assert paired.high - paired.low < 0.5 * (unpaired.high - unpaired.low)
