"""Recommendations from the scores that a device gives to all items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

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
    scores: Tensor, out: Tensor, k: int, label: Callable[[int], int | str], titles: Mapping[str, str]
) -> list[Recommendation]:
    """The k items with the highest scores [n_items], without the items in `out` and those without a score (NaN)."""
    k = whole(k, "k")
    scores = torch.where(scores.isnan(), -torch.inf, scores)
    scores[out] = -torch.inf
    ranked = scores.sort(descending=True, stable=True)  # among equals the item that comes first in the data
    pairs = zip(ranked.indices[:k].tolist(), ranked.values[:k].tolist(), strict=True)
    labels = ((label(item), score) for item, score in pairs if score > -torch.inf)
    return [Recommendation(item, score, titles.get(str(item), "")) for item, score in labels]
