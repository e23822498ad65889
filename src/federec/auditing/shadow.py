"""Membership inference with shadow models: the server invents users and learns from them what gives items away.

The server draws histories by popularity and lets invented devices learn from the very parameters that it sends to the
real ones. Of these it knows the items. A logistic regression on what the other attacks say, and on popularity, learns
how likely a user has an item:

    P[user has item] = sigma(a . x + c)     x: the attacks' scores over their size, the logarithm of the popularity
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from federec.auditing.measures import Marks, Scores
from federec.auditing.reading import Known
from federec.cohort.draw import Devices
from federec.data.interactions import Interactions
from federec.data.split import HeldOut, Split

_STEPS = 12
_RIDGE = 1.0
_SPREAD = 0.8  # of the logarithm of history lengths; that of usual data


def invented(split: Split, known: Known, users: int, seed: int) -> tuple[Devices, Marks]:
    """Devices of invented users, and which items they have: histories of about the usual length, drawn by popularity.
    Their random streams are not those of real users."""
    generator = np.random.default_rng(seed)
    lengths = known.items * np.exp(_SPREAD * generator.standard_normal(users) - _SPREAD**2 / 2)
    counts = np.clip(lengths.round().astype(np.int64), 1, max(known.n_items // 2, 1))
    weight = np.log(np.maximum(known.popularity, 0.5))
    histories = []
    for count in counts:  # the largest of log weight + Gumbel noise: drawn by weight, without repeats
        key = weight + generator.gumbel(size=known.n_items)
        histories.append(np.argpartition(-key, count - 1)[:count])
    has = np.zeros((users, known.n_items), bool)
    for row, items in zip(has, histories, strict=True):
        row[items] = True
    none = HeldOut(np.zeros(users + 1, np.int64), np.zeros(0, np.int32))
    ptr = np.concatenate([[0], np.cumsum(counts)])
    ratings = None if split.ratings is None else np.full(ptr[-1], split.ratings.mean(), np.float32)
    numbers = split.data.n_users + (1 << 20) + np.arange(users)
    train = np.concatenate(histories).astype(np.int32)
    data = Interactions(
        "invented", np.repeat(np.arange(users, dtype=np.int32), counts), train, numbers, split.data.item_ids
    )
    return Devices.of(Split(data, ptr, train, none, none, ratings, numbers), False), has


def features(scores: Sequence[Scores], known: Known) -> NDArray[np.float32]:
    """[U, n_items, F]: each attack's scores [U, n_items] over their size for the user, and the popularity of items."""
    sized = []
    for each in scores:
        size = np.sqrt(np.square(each).mean(1, keepdims=True))
        sized.append(np.clip(each / np.where(size > 0, size, 1), -10, 10))
    popular = np.log1p(known.popularity).astype(np.float32)
    sized.append(np.broadcast_to(popular, sized[0].shape))
    return np.stack(sized, 2).astype(np.float32)


def fitted(x: NDArray[np.float32], y: Marks) -> NDArray[np.float64]:
    """Weights of a logistic regression of y on x and 1, by Newton's method with a small ridge."""
    rows = _with_one(x.reshape(-1, x.shape[-1]))
    labels, weights = y.reshape(-1).astype(float), np.zeros(rows.shape[1])
    for _ in range(_STEPS):
        p = _sigmoid(rows @ weights)
        gradient = rows.T @ (labels - p) - _RIDGE * weights
        curvature = (rows * (p * (1 - p))[:, None]).T @ rows + _RIDGE * np.eye(len(weights))
        weights = weights + np.linalg.solve(curvature, gradient)
    return weights


def probability(x: NDArray[np.float32], weights: NDArray[np.float64]) -> Scores:
    """[...] of having the item, from features [..., F]."""
    return _sigmoid(_with_one(x) @ weights).astype(np.float32)


def _with_one(x: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.concatenate([x, np.ones((*x.shape[:-1], 1))], -1).astype(np.float64)


def _sigmoid(value: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-np.clip(value, -30, 30)))
