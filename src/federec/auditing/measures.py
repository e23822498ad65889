"""How well an attack does: precision, recall and two AUCs, each over users with a 95 % interval.

An item that many users have is a good guess for anybody, whatever the server has seen; the AUCs take that out.

    mates     mean over pairs of attacked users u, v of P[s_u(j) > s_u(k)]   j: of u and not of v, k: of v and not of u
    popular   P[s_u(j) > s_u(k)]   j: of u, k: not of u and as popular as j; over all such pairs of all users

Both are 1/2 for a score that says the same of every user: the first one exactly, since u and v change places.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]
Marks = NDArray[np.bool_]

ALIKE = 1.1
"""Items count as equally popular where their numbers of users differ by less than this factor."""
MATES = 5
"""Neighbours on each side that an attacked user is compared with."""
_SIGMAS = 1.96  # of a 95 % interval


class Interval(NamedTuple):
    """A mean over users and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return "-" if self.mean != self.mean else f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


UNKNOWN = Interval(float("nan"), float("nan"), float("nan"))


def interval(values: NDArray[np.float64]) -> Interval:
    """The mean of the values of users, without those that have none, between 0 and 1."""
    known = values[~np.isnan(values)]
    if not len(known):
        return UNKNOWN
    mean = float(known.mean())
    half = _SIGMAS * float(known.std(ddof=1)) / len(known) ** 0.5 if len(known) > 1 else 1.0
    return Interval(mean, max(mean - half, 0.0), min(mean + half, 1.0))


def strata(popularity: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for each item: equal where items are equally popular."""
    steps = np.floor(np.log(np.maximum(popularity, 1)) / np.log(ALIKE))
    return np.where(popularity > 0, steps, -1).astype(np.int64)


def wins(mine: Scores, others: Scores) -> float:
    """Pairs in which one of `mine` is larger than one of `others`; ties count half."""
    ranked = np.sort(others)
    return float((np.searchsorted(ranked, mine, "left") + np.searchsorted(ranked, mine, "right")).sum()) / 2


def against_mates(scores: Scores, has: Marks) -> Interval:
    """The AUC against the items of other attacked users. Each user has a few mates, and is a mate of these."""
    count = len(scores)
    shifts = [shift for shift in range(-MATES, MATES + 1) if shift and abs(shift) <= (count - 1) // 2]
    if count == 2:
        shifts = [1]
    found = np.full((count, max(len(shifts), 1)), np.nan)
    for user in range(count):
        for place, shift in enumerate(shifts):
            other = has[(user + shift) % count]
            mine, theirs = scores[user][has[user] & ~other], scores[user][other & ~has[user]]
            if len(mine) and len(theirs):
                found[user, place] = wins(mine, theirs) / (len(mine) * len(theirs))
    known = (~np.isnan(found)).sum(1)
    return interval(np.where(known > 0, np.nansum(found, 1) / np.maximum(known, 1), np.nan))


def against_popular(scores: Scores, has: Marks, group: NDArray[np.int64]) -> Interval:
    """The AUC against other items of the same group. The interval is that of a ratio of sums over users."""
    better, pairs = np.zeros(len(scores)), np.zeros(len(scores))
    for user, (score, own) in enumerate(zip(scores, has, strict=True)):
        for number in np.unique(group[own]):
            here = group == number
            mine, others = score[here & own], score[here & ~own]
            better[user] += wins(mine, others)
            pairs[user] += len(mine) * len(others)
    if not pairs.sum():
        return UNKNOWN
    mean = float(better.sum() / pairs.sum())
    error = float(np.sqrt(np.square(better - mean * pairs).sum()) / pairs.sum())
    return Interval(mean, max(mean - _SIGMAS * error, 0.0), min(mean + _SIGMAS * error, 1.0))


class Measured(NamedTuple):
    """What an attack got right."""

    precision: Interval
    """The share of the named items that the user has; users of whom it names nothing are left out."""
    recall: Interval
    """The share of the user's items that it names."""
    auc: Interval
    """Against items of cohort mates."""
    popular: Interval
    """AUC against items of equal popularity."""


def measured(scores: Scores, named: Marks, has: Marks, group: NDArray[np.int64]) -> Measured:
    """Of scores [U, n_items] and named items, where users `has` these items."""
    right = (named & has).sum(1)
    with np.errstate(invalid="ignore"):
        precision, recall = right / named.sum(1), right / has.sum(1)
    aucs = against_mates(scores, has), against_popular(scores, has, group)
    return Measured(interval(precision), interval(recall), *aucs)


def largest(score: NDArray[np.floating], count: int) -> Marks:
    """Which items have the `count` largest scores."""
    named = np.zeros(len(score), bool)
    named[np.argsort(-score, kind="stable")[:count]] = True
    return named
