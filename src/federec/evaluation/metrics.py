"""From ranks to metrics. For 0-based ranks r_1 < r_2 < ... of a user's n held-out items and a cut-off K:

    HR@K = [r_1 < K]      recall@K = hits / n      precision@K = hits / K,      hits = number of r_i < K
    NDCG@K = sum_{r_i < K} 1 / log2(r_i + 2)  /  sum_{i <= min(n, K)} 1 / log2(i + 1)
    MRR@K = [r_1 < K] / (r_1 + 1)      MAP@K = sum_{r_i < K} i / (r_i + 1)  /  min(n, K)

With one item, HR = recall and MRR = MAP. A metric is the mean over users that have a held-out item.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from federec.errors import UserError, did_you_mean
from federec.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

CUTS = (5, 10, 20)

Metrics = dict[str, float]

RANKINGS = ("sampled", "full")
NAMES = tuple(f"{name}@{k}" for k in CUTS for name in ("hr", "ndcg", "mrr", "recall", "precision", "map"))
"""Of the metrics of ranks."""
_PLACES = np.arange(max(CUTS))
_DIVISORS = np.stack([np.ones(len(_PLACES)), np.log2((_PLACES + 2).astype(np.float32)), _PLACES + 1])
"""By what a hit at each place is divided: for HR, NDCG and MRR."""


def metric_of(text: str) -> tuple[str, str]:
    """The ranking and the metric of a text like `full.ndcg@10`."""
    ranking, _, metric = str(text).partition(".")
    if ranking not in RANKINGS or metric not in NAMES:
        known = [f"{ranking}.{metric}" for ranking in RANKINGS for metric in NAMES]
        remedy = did_you_mean(str(text), known).partition(" (known")[0]
        raise UserError(f"unknown metric '{text}'{remedy or '; write it like full.ndcg@10 or sampled.hr@10'}")
    return ranking, metric


def rank_metrics(ranks: Tensor | NDArray[np.int64], owner: Tensor | None = None) -> Metrics:
    """Means over users, at every cut-off. `owner` [P] says whose each rank is, where users can have several; else each
    user has one, and the fraction of users at each rank up to the last cut-off is enough. Ranks are on the CPU."""
    if owner is not None:
        assert not isinstance(ranks, np.ndarray)
        users, row = owner.unique(return_inverse=True)
        return {name: float(values.mean()) for name, values in user_metrics(ranks, row, len(users)).items()}
    values, last = np.asarray(ranks, np.int64), max(CUTS)
    counts = np.bincount(np.minimum(values, last), minlength=last + 1)[:last]
    fraction = counts / len(values) if len(values) else np.full(last, np.nan)  # of nobody, not a number
    hr, ndcg, mrr = (fraction / _DIVISORS).cumsum(1).tolist()
    out: Metrics = {}
    for k in CUTS:
        out |= {
            f"hr@{k}": hr[k - 1],
            f"ndcg@{k}": ndcg[k - 1],
            f"mrr@{k}": mrr[k - 1],
            f"recall@{k}": hr[k - 1],
            f"precision@{k}": hr[k - 1] / k,
            f"map@{k}": mrr[k - 1],
        }
    return out


def user_metrics(ranks: Tensor, owner: Tensor | None = None, users: int | None = None) -> dict[str, Tensor]:
    """What each user contributes to the means of `rank_metrics`: [users] for every metric, not a number for a user
    without a held-out item. `owner` [P] is the row of the user that each rank belongs to; without it, rank e is that
    of user e, and -1 says that there is none."""
    users = len(ranks) if users is None else users
    owner = torch.arange(users) if owner is None else owner.long()
    owner, ranks = owner[ranks >= 0], ranks[ranks >= 0].long()
    order = (owner * (1 + int(ranks.max()) if len(ranks) else 1) + ranks).argsort(stable=True)
    owner, ranks = owner[order], ranks[order]  # each user's best first
    held = torch.bincount(owner, minlength=users)
    place = torch.arange(len(owner)) - (held.cumsum(0) - held)[owner] + 1
    position = ranks.double()

    def total(values: Tensor) -> Tensor:
        return torch.zeros(users, dtype=torch.float64).index_add_(0, owner, values)

    out: dict[str, Tensor] = {}
    for k in CUTS:
        hit, possible = (ranks < k).double(), held.clamp(1, k)
        hits = total(hit)
        ideal = (1 / torch.log2(torch.arange(k).double() + 2)).cumsum(0)
        out |= {
            f"hr@{k}": (hits > 0).double(),
            f"ndcg@{k}": total(hit / torch.log2(position + 2)) / ideal[possible - 1],
            f"mrr@{k}": total(hit * (place == 1) / (position + 1)),
            f"recall@{k}": hits / held,
            f"precision@{k}": hits / k,
            f"map@{k}": total(hit * place / (position + 1)) / possible,
        }
    return {name: values.masked_fill(held == 0, torch.nan) for name, values in out.items()}


def headline(test: dict[str, Metrics]) -> dict[str, Metrics]:
    """HR@10 and NDCG@10 among the metrics of a part, for each ranking."""
    return {ranking: {name: test[ranking][name] for name in ("hr@10", "ndcg@10")} for ranking in RANKINGS}


def list_metrics(lists: Tensor, n_items: int) -> Metrics:
    """Metrics of the recommendation lists [E, TOP], -1 for no item: the fraction of the catalogue that appears in any
    list, and how unequally items are recommended (Gini: 0 = all items equally often, 1 = only one item)."""
    out: Metrics = {}
    for k in CUTS:
        listed = lists[:, :k]
        counts = torch.bincount(listed[listed >= 0], minlength=n_items).double().sort().values
        position = torch.arange(1, n_items + 1, dtype=torch.float64)
        gini = ((2 * position - n_items - 1) * counts).sum() / (n_items * counts.sum())
        out |= {f"coverage@{k}": float((counts > 0).double().mean()), f"gini@{k}": float(gini)}
    return out


def lightest_quarter(interactions: Tensor) -> Tensor:
    """Positions of the quarter of users with the fewest interactions; the earlier of equal users comes first."""
    return interactions.argsort(stable=True)[: -(-len(interactions) // 4)]
