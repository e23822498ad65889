"""What the figures mean: 1 for who knows all, 1/2 for who says the same of everybody."""

import numpy as np
import pytest

from federec.auditing.measures import against_mates, against_popular, largest, measured, strata

GENERATOR = np.random.default_rng(0)
POPULAR = GENERATOR.random(200) ** 3
HAS = GENERATOR.random((60, 200)) < POPULAR
COUNTS = HAS.sum(0)


def test_who_knows_the_items_is_always_right():
    found = measured(HAS.astype(np.float32), HAS, HAS, strata(COUNTS))
    assert [each.mean for each in found] == [1, 1, 1, 1]


def test_a_score_that_is_the_same_for_all_users_says_nothing_whatever_it_is():
    for score in (POPULAR, GENERATOR.random(200)):
        same = np.broadcast_to(score, HAS.shape).astype(np.float32)
        assert against_mates(same, HAS).mean == pytest.approx(0.5, abs=1e-3)
        assert against_popular(same, HAS, COUNTS).mean == pytest.approx(0.5, abs=1e-6)
        assert against_popular(same, HAS, strata(COUNTS)).mean == pytest.approx(0.5, abs=0.03)


def test_half_of_the_knowledge_is_seen():
    known = HAS & (GENERATOR.random(HAS.shape) < 0.5)
    found = measured(known.astype(np.float32), known, HAS, strata(COUNTS))
    assert found.precision.mean == 1
    assert found.recall.mean == pytest.approx(0.5, abs=0.05)
    assert found.auc.low < 0.75 < found.auc.high + 0.01
    assert found.popular.mean == pytest.approx(0.75, abs=0.03)


def test_users_of_whom_nothing_is_named_have_no_precision():
    nothing = np.zeros_like(HAS)
    found = measured(nothing.astype(np.float32), nothing, HAS, strata(COUNTS))
    assert np.isnan(found.precision.mean) and str(found.precision) == "-"
    assert found.recall.mean == 0 and found.auc.mean == 0.5


def test_the_largest_scores_are_named():
    assert largest(np.array([0.1, 0.9, 0.5]), 2).tolist() == [False, True, True]


def test_items_that_nobody_has_are_not_like_those_of_one_user():
    group = strata(np.array([0, 1, 1, 2, 100, 105, 120]))
    assert group[0] != group[1] == group[2] != group[3] != group[4] == group[5] != group[6]
