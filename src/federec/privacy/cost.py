"""What one round costs a user, and epsilon of many rounds.

Two runs are neighbours when they differ in one user, who is there with all her data or not at all. What a round
releases differs between neighbours by at most the sensitivity; the noise on it makes the two hard to tell apart. Costs
are composed by `dp-accounting`: Gaussian noise by RDP and by PLD (privacy loss distributions, the tighter one), Skellam
noise by RDP with the bound of Agarwal, Kairouz and Liu (NeurIPS 2021). Laplace noise adds up.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from federec.errors import UserError

DELTA = 1e-6
"""Where a run names none."""
ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 72, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
"""Orders of Renyi divergence that are tried; the best one counts."""

_LEAST, _MOST = 0.05, 1e6  # multipliers
_INTERVAL = 1e-3  # of a privacy loss distribution: ten times as fast as the usual 1e-4, epsilon at most 0.1% larger

Accountant = Literal["pld", "rdp", "sum"]
"""`sum`: epsilons of rounds simply add up."""


class Gaussian(NamedTuple):
    """Normal noise on a sum over devices, or on one device's update."""

    multiplier: float
    """Standard deviation / sensitivity."""
    sampling: float = 1.0
    """Probability with which a user takes part in a round, independently of others (Poisson sampling)."""


class Skellam(NamedTuple):
    """Integer noise, the difference of two Poisson variables, on a sum of integers."""

    l2: float
    """Sensitivity of the sum in the Euclidean norm."""
    l1: float
    """The same in the sum of absolute values."""
    variance: float
    """Of the noise on each value of the sum."""


class Laplace(NamedTuple):
    """Laplace noise on one device's update."""

    epsilon: float
    """Of one round; delta is 0."""


Cost = Gaussian | Skellam | Laplace


def accountants(cost: Cost) -> tuple[Accountant, ...]:
    """Those that can add up a cost, the one that counts first."""
    if isinstance(cost, Gaussian):
        return "pld", "rdp"
    return ("rdp",) if isinstance(cost, Skellam) else ("sum",)


def epsilon(cost: Cost, rounds: int, delta: float = DELTA, by: Accountant | None = None) -> float:
    """Epsilon of so many rounds at this delta; infinite where nothing is promised."""
    by = by or accountants(cost)[0]
    if not rounds:
        return 0.0
    if isinstance(cost, Laplace):
        return rounds * cost.epsilon
    if isinstance(cost, Gaussian) and cost.multiplier <= 0:
        return math.inf
    if by == "pld":
        assert isinstance(cost, Gaussian)
        return _pld(cost, rounds, delta)
    from dp_accounting.rdp import compute_epsilon

    orders = integers(ORDERS) if isinstance(cost, Skellam) else ORDERS
    found, _ = compute_epsilon(orders, renyi(cost, rounds, orders), delta)
    return float(found)


def renyi(cost: Gaussian | Skellam, rounds: int, orders: Sequence[float] = ORDERS) -> list[float]:
    """Renyi divergence of so many rounds at each order; Skellam noise has a bound at whole orders."""
    if isinstance(cost, Skellam):
        return [rounds * _skellam(cost, order) for order in orders]
    from dp_accounting.rdp import RdpAccountant

    quiet()
    accountant = RdpAccountant(list(orders))
    accountant.compose(event(cost), rounds)
    found: list[float] = [float(value) for value in accountant._rdp]
    return found


def event(cost: Gaussian) -> Any:
    """One round, as `dp-accounting` describes it."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

    noise = GaussianDpEvent(cost.multiplier)
    return noise if cost.sampling >= 1 else PoissonSampledDpEvent(cost.sampling, noise)


def integers(orders: Sequence[float]) -> list[int]:
    """The whole numbers among some orders."""
    return [int(order) for order in orders if order == int(order) and order > 1]


def most_rounds(cost: Cost, limit: float, delta: float = DELTA, at_most: int = 1 << 20) -> int:
    """Rounds that a limit pays for."""
    low, high = 0, 1
    while high < at_most and epsilon(cost, high, delta) <= limit:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon(cost, middle, delta) <= limit else (low, middle)
    return low


def multiplier(limit: float, rounds: int, cost: Callable[[float], Cost], delta: float = DELTA) -> float:
    """The smallest noise multiplier, to a thousandth of it, with which so many rounds stay within a limit; `cost` is
    what one round costs with a multiplier."""

    def enough(value: float) -> bool:
        return epsilon(cost(value), rounds, delta) <= limit

    low, high = 0.5, 1.0
    while not enough(high):
        low, high = high, 2 * high
        if high > _MOST:
            raise UserError(f"epsilon {limit:g} asks for more noise than makes sense; raise epsilon or delta")
    while low > _LEAST and enough(low):
        low, high = low / 2, low
    return _rounded_up(_bisected(low, high, 1e-3, enough)[1])


def _bisected(low: float, high: float, precision: float, enough: Callable[[float], bool]) -> tuple[float, float]:
    """A value that is not enough, if there is one, and one that is, close to each other."""
    while high > low * (1 + precision):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return low, high


def _rounded_up(value: float) -> float:
    """To four digits, never down."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(value / unit) * unit:.4g}")


def _skellam(cost: Skellam, order: float) -> float:
    """Agarwal et al. 2021, theorem 3.5: Renyi divergence of whole order a,

    a l2^2 / (2 v) + min( ((2a - 1) l2^2 + 6 l1) / (4 v^2), 3 l1 / (2 v) )
    """
    l2, l1, v = cost
    square = l2**2
    return order * square / (2 * v) + min(((2 * order - 1) * square + 6 * l1) / (4 * v * v), 1.5 * l1 / v)


def _pld(cost: Gaussian, rounds: int, delta: float) -> float:
    if cost.sampling >= 1:  # n rounds are one round with less noise, and its distribution is known exactly
        from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

        loss = GaussianPrivacyLoss(cost.multiplier / math.sqrt(rounds))
        high = 1.0
        while loss.get_delta_for_epsilon(high) > delta:
            high *= 2
        return _bisected(high * 1e-9, high, 1e-6, lambda value: loss.get_delta_for_epsilon(value) <= delta)[1]
    from dp_accounting.pld import PLDAccountant

    quiet()
    accountant = PLDAccountant(value_discretization_interval=_INTERVAL)
    return float(accountant.compose(event(cost), rounds).get_epsilon(delta))


def quiet() -> None:
    """`dp-accounting` warns of single orders that it leaves out, which only makes epsilon larger."""
    logging.getLogger("absl").setLevel(logging.ERROR)
