"""Epsilon is that of dp-accounting called by hand, and that of a published table."""

import math

import pytest

pytest.importorskip("dp_accounting", reason="pip install federec[privacy]")

import dp_accounting as dp
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from federec.errors import UserError
from federec.privacy.cost import Gaussian, Laplace, Skellam, accountants, epsilon, most_rounds, multiplier, renyi

SETTINGS = [
    # multiplier, sampling, rounds, delta
    (1.2, 1.0, 1, 1e-6),
    (18.0, 1.0, 100, 1e-5),
    (1.0, 0.01, 1000, 1e-6),
    (4.0, 0.1, 300, 1e-6),
    (0.8, 0.004, 5000, 1e-7),
]


@pytest.mark.parametrize(("noise", "sampling", "rounds", "delta"), SETTINGS)
def test_epsilon_is_that_of_dp_accounting_called_by_hand(noise, sampling, rounds, delta):
    event = dp.GaussianDpEvent(noise)
    if sampling < 1:
        event = dp.PoissonSampledDpEvent(sampling, event)
    by_hand = dp.SelfComposedDpEvent(event, rounds)
    cost = Gaussian(noise, sampling)
    assert accountants(cost) == ("pld", "rdp")
    pld = PLDAccountant().compose(by_hand).get_epsilon(delta)
    assert epsilon(cost, rounds, delta) == pytest.approx(pld, rel=1e-3)
    rdp = RdpAccountant().compose(by_hand).get_epsilon(delta)
    assert epsilon(cost, rounds, delta, "rdp") == pytest.approx(rdp, rel=0.01)
    assert epsilon(cost, rounds, delta) <= epsilon(cost, rounds, delta, "rdp")


def test_a_published_table_is_reproduced():
    """TensorFlow Privacy, tutorials/README.md: MNIST, 60 epochs of batches of 256 among 60,000, noise multiplier 1.12,
    delta 1e-5: epsilon 2.92. That table turned orders into epsilon by Mironov (2017), log(1/delta) / (a - 1); what
    dp-accounting does today is a little tighter."""
    orders = [1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *range(5, 64), 128, 256, 512]
    cost, steps = Gaussian(1.12, 256 / 60_000), 60 * 60_000 // 256
    by_order = zip(renyi(cost, steps, orders), orders, strict=True)
    published = min(value + math.log(1e5) / (order - 1) for value, order in by_order)
    assert round(published, 2) == 2.92
    assert 0.7 * published < epsilon(cost, steps, 1e-5) < epsilon(cost, steps, 1e-5, "rdp") < published


@pytest.mark.parametrize(("limit", "rounds", "sampling"), [(3.0, 100, 1.0), (0.5, 1, 1.0), (8.0, 200, 0.05)])
def test_solved_noise_stays_within_the_limit_and_is_not_much_more_than_that(limit, rounds, sampling):
    def cost(value):
        return Gaussian(value, sampling)

    solved = multiplier(limit, rounds, cost)
    assert 0.99 * limit < epsilon(cost(solved), rounds) <= limit < epsilon(cost(0.98 * solved), rounds)
    assert most_rounds(cost(solved), limit) >= rounds > most_rounds(cost(0.95 * solved), limit)


def test_noise_that_makes_no_sense_is_refused():
    with pytest.raises(UserError, match="more noise than makes sense"):
        multiplier(1e-7, 1000, Gaussian)


def test_skellam_noise_costs_a_little_more_than_normal_noise_and_less_so_when_it_is_wide():
    normal = epsilon(Gaussian(2.0), 10, by="rdp")
    costs = [epsilon(Skellam(wide, wide**2, (2.0 * wide) ** 2), 10) for wide in (3.0, 30.0, 3000.0)]
    assert costs[0] > costs[1] > costs[2] > 0.999 * normal
    assert costs[2] == pytest.approx(normal, rel=0.01)


def test_the_bound_of_skellam_noise_worked_by_hand():
    """Order 2, l2 = 1, l1 = 1, variance 4: 2 / 8 + min((3 + 6) / 64, 3 / 8)."""
    assert renyi(Skellam(1.0, 1.0, 4.0), 3, [2]) == pytest.approx([3 * (0.25 + 9 / 64)])


def test_no_noise_promises_nothing_and_laplace_noise_adds_up():
    assert epsilon(Gaussian(0.0), 1) == math.inf and epsilon(Gaussian(1.0), 0) == 0
    assert epsilon(Laplace(0.25), 8) == 2.0 and most_rounds(Laplace(0.25), 2.0) == 8
    assert accountants(Laplace(0.25)) == ("sum",)
