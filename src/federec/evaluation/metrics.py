"""From ranks to metrics. One item is held out per user, so for a 0-based rank r and a cut-off K:

    HR@K = recall@K = [r < K]      precision@K = [r < K] / K
    NDCG@K = [r < K] / log2(r + 2)      MRR@K = MAP@K = [r < K] / (r + 1)

A metric is the mean over users.
"""

from __future__ import annotations

import torch
from torch import Tensor

CUTS = (5, 10, 20)

Metrics = dict[str, float]


def rank_metrics(ranks: Tensor) -> Metrics:
    """Means over users, at every cut-off: from the fraction of users at each rank up to the last cut-off."""
    last = max(CUTS)
    fraction = torch.bincount(ranks.long().clamp(max=last), minlength=last + 1)[:last].double() / len(ranks)
    position = torch.arange(last)
    hr, ndcg, mrr = (
        values.cumsum(0).tolist()
        for values in (fraction, fraction / torch.log2(position + 2), fraction / (position + 1))
    )
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


def user_metrics(ranks: Tensor) -> dict[str, Tensor]:
    """What each user contributes to the means of `rank_metrics`: [E] for every metric."""
    position = ranks.long().double()
    out: dict[str, Tensor] = {}
    for k in CUTS:
        hit = (ranks < k).double()
        ndcg, mrr = hit / torch.log2(position + 2), hit / (position + 1)
        out |= {f"hr@{k}": hit, f"ndcg@{k}": ndcg, f"mrr@{k}": mrr}
        out |= {f"recall@{k}": hit, f"precision@{k}": hit / k, f"map@{k}": mrr}
    return out


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
