"""Ranks of held-out items, for many users at once. A tie counts against the held-out item, and so does a score that is
not a number: a method that diverges must not look good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from federec.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


TOP = 20
"""Length of the recommendation lists kept for coverage and Gini."""


def sampled_ranks(scores: Tensor, candidates: Tensor | None = None) -> Tensor:
    """0-based rank of the first column among all columns, [E]; candidates of -1 do not count, all others do."""
    beaten = scores[:, 1:] < scores[:, :1]
    if candidates is None:
        return beaten.shape[1] - beaten.view(torch.uint8).sum(1, dtype=torch.int32)
    return ((candidates[:, 1:] >= 0) & ~beaten).sum(1)


@dataclass(frozen=True)
class FullRanks:
    """Ranks among all items outside the user's history, and the test-time recommendation lists."""

    valid: Tensor
    test: Tensor
    lists: Tensor
    """[E, TOP] item codes, best first; -1 where a user has fewer unknown items."""


Pairs: TypeAlias = "tuple[Tensor, Tensor]"
"""Row and item code of each pair."""


def full_ranks(scores: Tensor, train: Pairs, valid: Pairs, test: Pairs) -> FullRanks:
    """Rank all items: scores [E, n_items] (overwritten); the pairs of each part.

    Validation ranks among items outside training; test also leaves out the validation items, known by then. A held-out
    item is never left out of its own ranking, even if the user trained on it. Held-out items of the same part stay in
    the list, so that their ranks are the positions in one list.
    """
    test_scores = scores[test]
    valid_ranks = validation_ranks(scores, train, valid)
    scores[valid] = -torch.inf
    scores[test] = test_scores
    test_ranks = _positions(scores, test[0], test_scores)
    best = scores.topk(min(TOP, scores.shape[1]), dim=1)
    return FullRanks(valid_ranks, test_ranks, torch.where(best.values == -torch.inf, -1, best.indices))


def validation_ranks(scores: Tensor, train: Pairs, valid: Pairs) -> Tensor:
    """The ranks of validation items alone; the scores of training items are overwritten."""
    values = scores[valid]
    scores[train] = -torch.inf
    scores[valid] = values
    return _positions(scores, valid[0], values)


def _positions(scores: Tensor, row: Tensor, values: Tensor) -> Tensor:
    """How many other items of its row do not score below each of these values, [P]."""
    if torch.equal(row, torch.arange(len(scores), device=row.device)):  # one item of each user: nothing is copied
        return scores.shape[1] - 1 - (scores < values[:, None]).sum(1)
    parts = zip(row.split(len(scores)), values.split(len(scores)), strict=True)
    found = [scores.shape[1] - 1 - (scores[rows] < some[:, None]).sum(1) for rows, some in parts]
    return torch.cat(found) if found else torch.zeros_like(row)
