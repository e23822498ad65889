import math

import pytest

from federec.runs.best import Best


def chosen(*values):
    """The best of rounds with these values."""
    best = Best()
    for round_, value in enumerate(values, 1):
        best = best.considered(round_, value, round_ - 1)
    return best


def test_the_highest_value_wins():
    assert chosen(0.2, 0.5, 0.4) == Best(2, 0.5, 1)
    assert chosen(0.1, 0.2, 0.3) == Best(3, 0.3, 2)


def test_the_earliest_of_equals_wins_whatever_the_last_bits_say():
    once, again = 0.1 + 0.2, 0.3
    assert once != again
    assert chosen(once, again).round == chosen(again, once).round == 1
    assert chosen(0.25, 0.5, 0.5, 0.5).round == 2
    assert chosen(0.5, 0.5 + 3e-5).round == 1  # the rounding of secure sums


@pytest.mark.parametrize("users", [5, 943, 6040])
def test_one_user_more_is_better(users):
    hits = users // 2
    assert chosen(hits / users, (hits + 1) / users).round == 2


def test_small_steps_add_up():
    assert chosen(*(0.5 + 4e-5 * step for step in range(10))).value >= 0.5 + 4e-5 * 8


@pytest.mark.parametrize("nothing", [None, math.nan])
def test_no_value_never_wins(nothing):
    assert chosen(0.0, nothing).round == 1
    assert chosen(nothing, nothing, 0.0, nothing) == Best(3, 0.0, 2)
    assert chosen(nothing, nothing) == Best(2, None, 1)  # no device tells metrics: the newest counts


def test_patience_counts_the_rounds_since_the_best():
    best = Best(4, 0.5, 4)
    assert not best.stale(8, 5) and best.stale(9, 5)
    assert not best.stale(1000, None)
    assert not Best(4, None, 4).stale(1000, 5)  # without values there is nothing to wait for
