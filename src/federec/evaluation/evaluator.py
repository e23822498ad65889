"""Evaluation of a whole population, fed a few users at a time, by whoever can score items for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from federec.data.split import Split
from federec.evaluation.candidates import Candidates, sample
from federec.evaluation.metrics import Metrics, lightest_quarter, list_metrics, rank_metrics
from federec.evaluation.ranking import TOP, full_ranks, sampled_ranks

Score = Callable[[Tensor], Tensor]
"""Items [C, K] -> scores [C, K], row by row for the users at hand."""

Report = dict[str, Metrics]
"""`sampled`, `full`, and each for the quarter of users with the fewest interactions: `sampled_light`, `full_light`."""

_BLOCK_BYTES = 32 * 2**20


class Evaluator:
    """What is held out, what it is ranked against, and who the light users are."""

    def __init__(self, split: Split, seed: int, place: torch.device | str = "cpu", most: int | None = None) -> None:
        """`most`: evaluate only so many users, drawn at random."""
        candidates = sample(split, seed, most=most)
        self.split = split
        self.users = candidates.users.to(place)
        self.candidates = Candidates(self.users, candidates.valid.to(place), candidates.test.to(place))
        self.row = torch.full((split.data.n_users,), -1, device=place)
        self.row[self.users] = torch.arange(len(self.users), device=place)
        interactions = torch.from_numpy(np.diff(split.ptr))[candidates.users]
        self.light = lightest_quarter(interactions)

    def sampled(self) -> Sampled:
        """A fresh ranking against the 99 candidates."""
        return Sampled(self)

    def full(self, width: int = 1) -> Full:
        """A fresh ranking of all items; `width` values are held for each (user, item) pair while scoring."""
        return Full(self, width)


class Sampled:
    """Ranks of the held-out items among the candidates."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.of = evaluator
        self.valid = torch.zeros(len(evaluator.users), dtype=torch.int64, device=evaluator.users.device)
        self.test = self.valid.clone()
        self.seen = torch.zeros_like(self.valid, dtype=torch.bool)

    def add(self, users: Tensor, score: Score) -> None:
        """Rank for these users; those that are not evaluated are passed over."""
        rows = self.of.row[users]
        real = rows >= 0
        known = rows[real]
        valid, test = self.of.candidates.valid, self.of.candidates.test
        items = torch.cat([valid[rows.clamp(min=0)], test[rows.clamp(min=0)]], 1).long()
        scores = score(items.clamp_(min=0))[real]
        width = valid.shape[1]
        self.valid[known] = sampled_ranks(scores[:, :width], valid[known])
        self.test[known] = sampled_ranks(scores[:, width:], test[known])
        self.seen[known] = True

    def missing(self) -> Tensor:
        """Evaluated users not ranked yet."""
        return self.of.users[~self.seen]

    def tensors(self) -> dict[str, Tensor]:
        """Ranks so far, 0 for who is missing."""
        return {"valid": self.valid, "test": self.test}

    def complete(self, tensors: dict[str, Tensor]) -> None:
        """Take over the ranks of all users."""
        self.valid, self.test = tensors["valid"], tensors["test"]
        self.seen.fill_(True)

    def metrics(self) -> tuple[Report, Report]:
        """Of validation and of test."""
        light = self.of.light
        valid, test = self.valid.cpu(), self.test.cpu()
        return (
            {"sampled": rank_metrics(valid), "sampled_light": rank_metrics(valid[light])},
            {"sampled": rank_metrics(test), "sampled_light": rank_metrics(test[light])},
        )


class Full:
    """Ranks among all items, and the recommendation lists."""

    def __init__(self, evaluator: Evaluator, width: int) -> None:
        self.of = evaluator
        self.width = width
        count = len(evaluator.users)
        self.valid = torch.zeros(count, dtype=torch.int64)
        self.test = self.valid.clone()
        self.lists = torch.zeros(count, min(TOP, evaluator.split.data.n_items), dtype=torch.int64)

    def add(self, users: Tensor, score: Score) -> None:
        """Rank for these users, item block by item block."""
        rows = self.of.row[users]
        real = rows >= 0
        if not bool(real.any()):
            return
        n_items = self.of.split.data.n_items
        size = max(1, int(_BLOCK_BYTES / (4 * self.width * len(users))))
        blocks = torch.arange(n_items, device=users.device).split(size)
        scores = torch.cat([score(block.expand(len(users), -1)) for block in blocks], 1)[real]
        known = rows[real]
        held_out = self.of.candidates.valid[known, 0].long(), self.of.candidates.test[known, 0].long()
        ranks = full_ranks(scores, self._train(users[real]), *held_out)
        known = known.cpu()
        self.valid[known], self.test[known] = ranks.valid.cpu(), ranks.test.cpu()
        self.lists[known] = ranks.lists.cpu()

    def tensors(self) -> dict[str, Tensor]:
        """Ranks and lists so far, 0 for who is missing."""
        return {"valid": self.valid, "test": self.test, "lists": self.lists}

    def complete(self, tensors: dict[str, Tensor]) -> None:
        """Take over the ranks and lists of all users."""
        self.valid, self.test, self.lists = (tensors[name] for name in ("valid", "test", "lists"))

    def _train(self, users: Tensor) -> Tensor:
        """Training items of these users, padded with -1."""
        split, codes = self.of.split, users.cpu().numpy()
        start, count = split.ptr[codes], split.ptr[codes + 1] - split.ptr[codes]
        column = np.arange(count.max())
        index = np.minimum(start[:, None] + column, len(split.train) - 1)
        padded = np.where(column < count[:, None], split.train[index], -1)
        return torch.from_numpy(padded.astype(np.int64)).to(users.device)

    def metrics(self) -> tuple[Report, Report]:
        """Of validation and of test; list metrics belong to test, whose lists leave out all that is known by then."""
        light, n_items = self.of.light, self.of.split.data.n_items
        return (
            {"full": rank_metrics(self.valid), "full_light": rank_metrics(self.valid[light])},
            {
                "full": rank_metrics(self.test) | list_metrics(self.lists, n_items),
                "full_light": rank_metrics(self.test[light]) | list_metrics(self.lists[light], n_items),
            },
        )
