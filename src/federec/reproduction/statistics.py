"""Is the difference between two methods more than chance? Paired over users and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]

_RESAMPLES = 2000
SEEDS = 3
"""A difference over fewer common seeds is no claim."""
LEVEL = 0.05
"""The chance that a page, whose claims are all corrected together, has any wrong claim."""
_BORROWED = 4
"""Degrees of freedom that the other comparisons add to the variance over seeds; see `paired_tests`."""
_LEAST = 1e-9
"""No p-value is smaller: a few seeds know nothing of tails that thin."""


class Difference(NamedTuple):
    """Mean of a - b and its 95 % interval."""

    mean: float
    low: float
    high: float

    def verdict(self, seeds: int) -> str:
        """What the interval says of a difference over so many seeds. With few of them it hardly counts chance in
        training, which the words then say."""
        word = "better" if self.low > 0 else "worse" if self.high < 0 else "no clear difference"
        few = "; seeds were not varied" if seeds == 1 else f"; only {seeds} seeds"
        return word + (few if seeds < SEEDS else "")


class PairedTest(NamedTuple):
    """A difference and the chance of one at least as large if there were none."""

    difference: Difference
    p: float
    seeds: int


def gains(ranks: NDArray[np.int64], metric: str) -> NDArray[np.float64]:
    """What each user contributes to the mean hr@10 or ndcg@10, from the rank of the held-out item."""
    hit = (ranks < 10).astype(np.float64)
    return hit if metric == "hr@10" else hit / np.log2(ranks + 2.0)


def bootstrap(values: Sequence[NDArray[np.float64]]) -> Difference:
    """Mean of each seed's users, over seeds, with its 95 % interval: seeds and users are drawn again. Where the seeds
    have the same number of users, these are the same in all of them and are drawn together."""
    seeds, counts, random = len(values), {len(users) for users in values}, np.random.default_rng(0)
    means, whole = np.empty(_RESAMPLES), np.stack(list(values)) if len(counts) == 1 else None
    for i in range(_RESAMPLES):
        drawn = random.integers(seeds, size=seeds)
        if whole is not None:
            users = whole.shape[1]
            means[i] = whole[drawn].mean(0)[random.integers(users, size=users)].mean()
        else:
            picked = [values[seed] for seed in drawn]
            means[i] = np.mean([users[random.integers(len(users), size=len(users))].mean() for users in picked])
    low, high = np.quantile(means, [0.025, 0.975])
    return Difference(float(np.mean([users.mean() for users in values])), float(low), float(high))


def paired_tests(tables: Sequence[NDArray[np.float64]]) -> list[PairedTest]:
    """The mean of each table [seeds, users] of differences, with its 95 % interval and its two-sided p-value. The
    tables are the comparisons of one metric on one data set.

    Mean over standard error is compared with Student's t. The variance is what a bootstrap over seeds and users
    estimates, in closed form: that of the users' means over users, plus that of the seeds' means over seeds. Counting
    resamples instead would need some 100,000 of them for each comparison, since the smallest of 200 p-values must be
    below 0.00025.

    Three seeds say little about how much seeds differ, and where they agree by luck, any difference would look
    certain: in simulations in which half of the variance is from three seeds, the bootstrap's own standard error makes
    a wrong claim in four of ten families of 200. So the part of the variance that is only from seeds is at least the
    average of all given tables, and the variance over seeds has `_BORROWED` more degrees of freedom than its seeds give
    it. In the same simulations at most 2 of 100 families then have a wrong claim where all comparisons vary alike over
    seeds, and 3 to 12 where a few of them vary and the others do not.
    """
    seeds = np.array([len(table) for table in tables])
    users = np.array([table.shape[1] for table in tables])
    means = np.array([table.mean() for table in tables])
    over_users = np.array([table.mean(0).var(ddof=1) for table in tables]) / users
    spread = np.array([table.mean(1).var(ddof=1) if len(table) > 1 else 0.0 for table in tables])
    noise = np.array([_residual(table) for table in tables]) / users
    repeated = seeds > 1
    average = max((spread - noise)[repeated].mean(), 0.0) if repeated.any() else 0.0
    over_seeds = np.maximum(spread, noise + average) / seeds
    variance = over_users + over_seeds
    squares = over_seeds**2 / (seeds - 1 + _BORROWED) + over_users**2 / (users - 1)
    freedom = np.divide(variance**2, squares, out=np.ones_like(variance), where=squares > 0)
    error = np.sqrt(variance)
    ratio = np.divide(np.abs(means), error, out=np.where(means == 0, 0.0, np.inf), where=error > 0)
    p = np.clip(2 * special.stdtr(freedom, -ratio), _LEAST, 1)
    half = special.stdtrit(freedom, 0.975) * error
    found = zip(means.tolist(), half.tolist(), p.tolist(), seeds.tolist(), strict=True)
    return [PairedTest(Difference(mean, mean - half, mean + half), p, seeds) for mean, half, p, seeds in found]


def _residual(table: NDArray[np.float64]) -> float:
    """The variance that neither the seeds' means nor the users' means explain."""
    seeds, users = table.shape
    rest = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    return float((rest**2).sum() / ((seeds - 1) * (users - 1))) if seeds > 1 else 0.0


def holm(p_values: Sequence[float], count: int = 0) -> list[float]:
    """The p-values, adjusted for how many there are (Holm, 1979): claiming all below 0.05 makes any wrong claim with a
    chance of at most 5 %, however the comparisons depend on each other. With a larger `count` they were chosen from so
    many, of which the others could have any p-value."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    factors = max(len(p), count) - np.arange(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1)
    return [float(value) for value in adjusted]


def verdict(mean: float, adjusted: float, seeds: int) -> str:
    """What may be said of a difference with that adjusted p-value."""
    if seeds < SEEDS:
        return "no claim"
    if adjusted >= LEVEL:
        return "no clear difference"
    return "better" if mean > 0 else "worse"
