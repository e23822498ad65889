"""The lower bound on epsilon is never above the truth, and not far below it; the truth here is a plain Gaussian."""

import numpy as np
import pytest

from federec.auditing.epsilon import (
    best_guesses,
    gaussian_epsilon,
    gaussian_fit,
    gaussian_mu,
    guessed,
    lower_bound,
    p_value,
)


def scores(mu, count, seed):
    """Of canaries that are in or out, mu apart."""
    generator = np.random.default_rng(seed)
    inside = generator.random(count) < 0.5
    return generator.standard_normal(count) + mu * inside, inside


@pytest.mark.parametrize("epsilon", [1.0, 3.0, 8.0])
def test_the_bound_holds_on_a_gaussian_mechanism_and_comes_close(epsilon):
    mu, count = gaussian_mu(epsilon), 10_000
    guesses = best_guesses(count, mu)
    found = [lower_bound(count, guesses, guessed(*scores(mu, count, seed), guesses)) for seed in range(40)]
    assert max(found) <= epsilon
    assert np.median(found) >= epsilon / 3


def test_a_mechanism_that_hides_everything_is_rarely_accused():
    right = np.array([guessed(*scores(0.0, 1000, seed), 100) for seed in range(2000)])
    accused = lower_bound(1000, 100, 59), lower_bound(1000, 100, 58)
    assert accused[0] > 0 == accused[1]
    assert np.mean(right >= 59) <= 0.06  # 5 % of the time, and chance


def test_canaries_in_the_clear_refute_any_usual_epsilon():
    assert guessed(*scores(50.0, 1000, 0), 800) == 800
    assert lower_bound(1000, 800, 800, delta=0.0) == pytest.approx(-np.log(0.05 ** (-1 / 800) - 1), abs=0.01)


def test_more_right_guesses_say_more_and_delta_takes_some_away():
    found = [lower_bound(1000, 100, right) for right in (50, 70, 90, 100)]
    assert found[0] == 0 and found == sorted(found) and found[-1] > 3
    assert lower_bound(1000, 100, 90, delta=1e-3) < lower_bound(1000, 100, 90, delta=0.0)
    assert p_value(1000, 100, 60, 0.0, 0.0) == pytest.approx(0.0284, abs=1e-3)  # of a fair coin


def test_the_gaussian_mechanism_is_the_known_one():
    # Balle and Wang 2018: sensitivity 1, deviation 1, epsilon 1 has delta 0.1269
    assert gaussian_epsilon(1.0, 0.126936) == pytest.approx(1.0, abs=1e-3)
    assert gaussian_epsilon(gaussian_mu(3.0)) == pytest.approx(3.0, abs=1e-3)
    assert gaussian_epsilon(0.0) == 0


def test_the_fit_has_the_truth_in_its_interval():
    truth = gaussian_epsilon(0.65)
    fits = [gaussian_fit(*scores(0.65, 2000, seed)) for seed in range(40)]
    assert sum(fit.low <= truth <= fit.high for fit in fits) >= 34
