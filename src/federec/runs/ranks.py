"""What a run's ranks say of each user."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from federec.data.split import Split
from federec.evaluation.metrics import user_metrics


def contributions(ranks: Mapping[str, Tensor], ranking: str, part: str = "test") -> dict[str, Tensor]:
    """What each evaluated user contributes to the mean of every metric, [E]; not a number where nothing of the user is
    held out. `ranks` are those of a run."""
    return user_metrics(ranks[f"{part} {ranking}"], _owner(ranks, ranking, part), _users(ranks, part))


def positions(ranks: Mapping[str, Tensor], ranking: str, part: str = "test") -> Tensor:
    """The position of each evaluated user's held-out item, the best of them where there are several; 1 is the first
    and 0 says that nothing of the user is held out. [E]."""
    found, owner = ranks[f"{part} {ranking}"].long(), _owner(ranks, ranking, part)
    if owner is None:
        return found + 1
    last = torch.iinfo(torch.int64).max
    best = torch.full((_users(ranks, part),), last).scatter_reduce(0, owner.long(), found + 1, "amin")
    return best.where(best < last, 0)


def with_training_items(ranks: Mapping[str, Tensor], split: Callable[[], Split]) -> dict[str, Tensor]:
    """The ranks with each evaluated user's number of training items, which older versions did not write down; without
    it where they did not write down either who was evaluated. `split` gives that of the run."""
    if "training items" in ranks or "users" not in ranks:
        return dict(ranks)
    counts = torch.from_numpy(np.diff(split().ptr))
    return {**ranks, "training items": counts[ranks["users"].long()]}


def _owner(ranks: Mapping[str, Tensor], ranking: str, part: str) -> Tensor | None:
    """Whose each rank is, where that is not one of each user: against sampled items only one item is ranked."""
    return ranks.get(f"{part} owner") if ranking == "full" else None


def _users(ranks: Mapping[str, Tensor], part: str) -> int:
    return len(ranks[f"{part} sampled"])
