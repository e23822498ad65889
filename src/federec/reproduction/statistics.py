"""Is the difference between two methods more than chance? Paired over users and seeds."""

from __future__ import annotations

from collections.abc import Sequence
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
    return bootstrap(list(gains(a, metric) - gains(b, metric)))


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
