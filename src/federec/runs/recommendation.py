"""Recommendations from the scores that a device gives to all items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from federec.errors import whole


class Recommendation(NamedTuple):
    """One recommended item.

    >>> item, score, title = run.recommend(42, k=1)[0]
    """

    item: int | str
    score: float
    title: str
    """Empty where there is none."""


def best(
    scores: NDArray[np.floating[Any]],
    out: NDArray[np.integer[Any]],
    k: int,
    label: Callable[[int], int | str],
    titles: Mapping[str, str],
) -> list[Recommendation]:
    """The k items with the highest scores [n_items], without the items in `out` and those without a score (NaN)."""
    k = whole(k, "k")
    scores = np.where(np.isnan(scores), -np.inf, scores)
    scores[out] = -np.inf
    ranked = np.argsort(-scores, kind="stable")[:k]  # among equals the item that comes first in the data
    pairs = zip(ranked.tolist(), scores[ranked].tolist(), strict=True)
    labels = ((label(item), score) for item, score in pairs if score > -np.inf)
    return [Recommendation(item, score, titles.get(str(item), "")) for item, score in labels]
