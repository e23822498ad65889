"""Is the difference between two methods more than chance? Paired over users and seeds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_RESAMPLES = 2000


class Difference(NamedTuple):
    """Mean of a - b and its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        return "better" if self.low > 0 else "worse" if self.high < 0 else "no clear difference"


def gains(ranks: NDArray[np.int64], metric: str) -> NDArray[np.float64]:
    """What each user contributes to the mean hr@10 or ndcg@10, from the rank of the held-out item."""
    hit = (ranks < 10).astype(np.float64)
    return hit if metric == "hr@10" else hit / np.log2(ranks + 2.0)


def paired_difference(a: NDArray[np.int64], b: NDArray[np.int64], metric: str) -> Difference:
    """How much better ranks a are than ranks b, both [seeds, users] for the same users and seeds. The interval is a
    bootstrap over users and seeds."""
    difference = gains(a, metric) - gains(b, metric)
    seeds, users = difference.shape
    random = np.random.default_rng(0)
    means = np.empty(_RESAMPLES)
    for i in range(_RESAMPLES):
        means[i] = difference[random.integers(seeds, size=seeds)].mean(0)[random.integers(users, size=users)].mean()
    low, high = np.quantile(means, [0.025, 0.975])
    return Difference(float(difference.mean()), float(low), float(high))
