"""What a run's ranks say of each user."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from federec.errors import UserError
from federec.evaluation.metrics import CUTS, user_metrics

RANKINGS = ("sampled", "full")
METRICS = tuple(f"{name}@{k}" for k in CUTS for name in ("hr", "ndcg", "mrr", "recall", "precision", "map"))


def contributions(ranks: Mapping[str, Tensor], ranking: str, part: str = "test") -> dict[str, Tensor]:
    """What each evaluated user contributes to the mean of every metric, [E]. `ranks` are those of a run."""
    return user_metrics(ranks[f"{part} {ranking}"])


def metric_of(text: str) -> tuple[str, str]:
    """The ranking and the metric of a text like `full.ndcg@10`."""
    ranking, _, metric = str(text).partition(".")
    if ranking not in RANKINGS or metric not in METRICS:
        known = "hr, ndcg, mrr, recall, precision, map; @5, @10, @20"
        raise UserError(f"unknown metric '{text}'; write it like full.ndcg@10 or sampled.hr@10 (known: {known})")
    return ranking, metric
