"""Ranks of held-out items, for many users at once. A tie counts against the held-out item, and so does a score that is
not a number: a method that diverges must not look good."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TOP = 20
"""Length of the recommendation lists kept for coverage and Gini."""


def sampled_ranks(scores: Tensor, candidates: Tensor) -> Tensor:
    """0-based rank of the first column among all columns, [E]; candidates of -1 do not count."""
    beaten = scores[:, 1:] < scores[:, :1]
    return ((candidates[:, 1:] >= 0) & ~beaten).sum(1)


@dataclass(frozen=True)
class FullRanks:
    """Ranks among all items outside the user's history, and the test-time recommendation lists."""

    valid: Tensor
    test: Tensor
    lists: Tensor
    """[E, TOP] item codes, best first; -1 where a user has fewer unknown items."""


def full_ranks(scores: Tensor, train: tuple[Tensor, Tensor], valid: Tensor, test: Tensor) -> FullRanks:
    """Rank all items: scores [E, n_items] (overwritten); train: row and item code of all training pairs.

    Validation ranks among items outside training; test also leaves out the validation item, known by then.
    """
    user = torch.arange(len(scores), device=scores.device)
    valid_score, test_score = scores[user, valid], scores[user, test]
    scores[train] = -torch.inf
    valid_rank = (~(scores < valid_score[:, None])).sum(1) - 1
    scores[user, valid] = -torch.inf
    test_rank = (~(scores < test_score[:, None])).sum(1) - 1
    best = scores.topk(min(TOP, scores.shape[1]), dim=1)
    return FullRanks(valid_rank, test_rank, torch.where(best.values == -torch.inf, -1, best.indices))
