import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from federec.cohort.chunks import plan


@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=80),
    st.floats(1, 300),
    st.floats(1, 50_000),
    st.floats(1, 10_000_000),
)
def test_plan_covers_all_in_order_within_padding_and_budget(lengths, per_sample, per_device, budget):
    lengths = sorted(lengths, reverse=True)
    covered = []
    for part in plan(np.array(lengths), per_sample, per_device, budget):
        covered += list(range(part.start, part.stop))
        inside = lengths[part]
        assert inside
        if len(inside) > 1:
            table = len(inside) * max(inside)
            assert 1 - sum(inside) / table <= 0.15 + 1e-9
            assert table * per_sample + len(inside) * per_device <= budget * (1 + 1e-9)
    assert covered == list(range(len(lengths)))


def test_cohorts_are_no_smaller_than_they_must_be():
    assert plan(np.array([10] * 8), 1.0, 0.0, 40.0) == [slice(0, 4), slice(4, 8)]
    assert plan(np.array([10, 10, 9, 9, 2, 2]), 1.0, 0.0, 1e9) == [slice(0, 4), slice(4, 6)]
    assert plan(np.array([10, 10, 9, 9, 2, 2]), 1.0, 0.0, 1e9, 0.5) == [slice(0, 6)]


def test_a_device_over_the_budget_is_a_cohort_of_its_own():
    assert plan(np.array([1000, 1, 1]), 8.0, 8.0, 64.0) == [slice(0, 1), slice(1, 3)]
