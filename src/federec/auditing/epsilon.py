"""Epsilon from canaries: a lower bound that needs no assumption, and an estimate that assumes normal noise.

m canaries are put in or left out by the toss of a coin; an attack guesses which, for r of them, and v guesses are
right. If the mechanism is (epsilon, delta)-private, then (Steinke, Nasr and Jagielski, Privacy Auditing with One (1)
Training Run, NeurIPS 2023, Theorem 5.2)

    P[v or more right] <= P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i       B ~ Binomial(r, 1 / (1 + e^-epsilon))

The largest epsilon at which this is below 5 % is refuted: epsilon is at least that, with 95 % confidence.

Where the scores of the canaries that are in and out are normal with means mu standard deviations apart, the mechanism
is as private as the Gaussian mechanism with that mu (Andrew et al., One-shot Empirical Privacy Estimation for Federated
Learning, ICLR 2024), whose epsilon solves (Dong, Roth and Su, Gaussian Differential Privacy, 2022)

    delta = Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq  # type: ignore[import-untyped]
from scipy.stats import binom, norm  # type: ignore[import-untyped]

from federec.auditing.measures import Interval

DELTA = 1e-6
CONFIDENCE = 0.95
_MOST = 60.0  # epsilon that nobody asks for


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The most that the probability of so many right guesses can be under (epsilon, delta)."""
    q = 1 / (1 + math.exp(-epsilon))
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, q))  # P[v > B >= v - i] for i = 1 ... v
    slope = float((below / np.arange(1, right + 1)).max()) if right else 0.0
    return min(float(binom.sf(right - 1, guesses, q)) + 2 * canaries * delta * slope, 1.0)


def lower_bound(canaries: int, guesses: int, right: int, delta: float = DELTA) -> float:
    """The largest epsilon that these guesses refute with 95 % confidence; 0 where they refute none."""
    return _largest(lambda epsilon: 1 - CONFIDENCE - p_value(canaries, guesses, right, epsilon, delta))


def _largest(above: Callable[[float], float]) -> float:
    """The epsilon at which a falling function crosses zero; 0 where it is never above."""
    if above(0.0) <= 0:
        return 0.0
    return _MOST if above(_MOST) > 0 else float(brentq(above, 0.0, _MOST, xtol=1e-4))


def gaussian_epsilon(mu: float, delta: float = DELTA) -> float:
    """Epsilon of the Gaussian mechanism whose two answers are mu standard deviations apart."""
    if mu <= 0:
        return 0.0

    def spent(epsilon: float) -> float:
        tail = epsilon + norm.logcdf(-epsilon / mu - mu / 2)
        return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(tail)) - delta

    if spent(0.0) <= 0:
        return 0.0
    most = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1
    return float(brentq(spent, 0.0, most, xtol=1e-6))


def gaussian_mu(epsilon: float, delta: float = DELTA) -> float:
    """The mu whose epsilon this is."""
    return float(brentq(lambda mu: gaussian_epsilon(mu, delta) - epsilon, 1e-6, 1e3, xtol=1e-6))


def best_guesses(canaries: int, mu: float, delta: float = DELTA) -> int:
    """How many guesses to make so that the lower bound is largest, if scores are normal and mu apart. It must not
    depend on which canaries are in, or the bound would not hold."""
    found = {count: expected_bound(canaries, count, mu, delta) for count in _counts(canaries)}
    return max(found, key=lambda count: found[count])


def _counts(canaries: int) -> list[int]:
    least = min(20, canaries)
    return sorted({2 * round(count / 2) for count in np.geomspace(least, canaries, 25) if count >= 2} | {canaries})


def expected_bound(canaries: int, guesses: int, mu: float, delta: float) -> float:
    """The bound from the `guesses` most extreme of normal scores, with as many right guesses as expected."""

    def mass(edge: float) -> float:
        return float(norm.sf(edge - mu / 2) + norm.sf(edge + mu / 2)) / 2 - guesses / canaries / 2

    edge = brentq(mass, -40.0 - mu, 40.0 + mu) if guesses < canaries else 0.0
    right = norm.sf(edge - mu / 2) / max(norm.sf(edge - mu / 2) + norm.sf(edge + mu / 2), 1e-300)
    return lower_bound(canaries, guesses, int(guesses * right), delta)


def guessed(scores: NDArray[np.float64], inside: NDArray[np.bool_], guesses: int) -> int:
    """How many guesses are right, if the larger half of them says `in` of the largest scores and the rest `out` of the
    smallest."""
    order = np.argsort(scores, kind="stable")
    most = (guesses + 1) // 2
    out = order[: guesses - most]
    return int(inside[order[len(order) - most :]].sum() + (~inside[out]).sum())


def gaussian_fit(scores: NDArray[np.float64], inside: NDArray[np.bool_], delta: float = DELTA) -> Interval:
    """The epsilon that normal scores say, with its 95 % interval."""
    there, gone = scores[inside], scores[~inside]
    spread = math.sqrt((there.var(ddof=1) + gone.var(ddof=1)) / 2)
    mu = float(there.mean() - gone.mean()) / max(spread, 1e-12)
    error = 1.96 * math.sqrt(1 / len(there) + 1 / len(gone) + mu * mu / (2 * len(scores)))
    most = min(mu + error, 40.0)
    return Interval(*(gaussian_epsilon(min(value, 40.0), delta) for value in (mu, mu - error, most)))
