"""Evaluation of all users, a few at a time, with any function that scores items for them."""

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
"""Items [C, K] -> scores [C, K]; row c belongs to the c-th of the users at hand."""

Report = dict[str, Metrics]
"""`sampled`, `full`, and each for the quarter of users with the fewest interactions: `sampled_light`, `full_light`."""

BLOCK_BYTES = {"cpu": 4 * 2**20, "cuda": 32 * 2**20}
"""What scoring a block of items may take: little enough for a CPU's cache, enough for a GPU to be worth a launch."""


def score_all(users: Tensor, score: Score, n_items: int, width: int) -> Tensor:
    """The users' scores of all items, block by block; scoring holds `width` values for each (user, item) pair."""
    size = max(1, BLOCK_BYTES[users.device.type] // (4 * width * len(users)))
    blocks = torch.arange(n_items, device=users.device).split(size)
    return torch.cat([score(block.expand(len(users), -1)) for block in blocks], 1)


class Evaluator:
    """The held-out items, the candidates they are ranked against, and the light users."""

    def __init__(self, split: Split, seed: int, device: torch.device | str = "cpu", most: int | None = None) -> None:
        """`most`: evaluate at most this many users, drawn at random."""
        candidates = sample(split, seed, most=most)
        self.split = split
        self.users = candidates.users.to(device)
        self.both = torch.stack([candidates.valid, candidates.test], 1).to(device)
        """[E, 2, 1 + 99] candidates for validation and for test."""
        self.candidates = Candidates(self.users, self.both[:, 0], self.both[:, 1])
        self.row = torch.full((split.data.n_users,), -1, device=device)
        self.row[self.users] = torch.arange(len(self.users), device=device)
        interactions = torch.from_numpy(np.diff(split.ptr))[candidates.users]
        self.light = lightest_quarter(interactions)

    def sampled(self) -> Sampled:
        """A new ranking against the 99 candidates."""
        return Sampled(self)

    def full(self, width: int = 1) -> Full:
        """A new ranking of all items; scoring holds `width` values for each (user, item) pair."""
        return Full(self, width)


class Sampled:
    """Ranks of the held-out items among the candidates."""

    whole = None

    def __init__(self, evaluator: Evaluator) -> None:
        self.of = evaluator
        # One row more than evaluated users: all others write their ranks there, and nobody reads them. So nothing has
        # to wait for a GPU to count the evaluated ones.
        self._ranks = torch.zeros(len(evaluator.users) + 1, 2, dtype=torch.int64, device=evaluator.users.device)
        self._seen = torch.zeros_like(self._ranks[:, 0], dtype=torch.bool)

    @property
    def valid(self) -> Tensor:
        """Each evaluated user's rank of the validation item."""
        return self._ranks[:-1, 0]

    @property
    def test(self) -> Tensor:
        """Each evaluated user's rank of the test item."""
        return self._ranks[:-1, 1]

    def add(self, users: Tensor, score: Score) -> None:
        """Rank for these users; those that are not evaluated are ignored."""
        if not len(users):
            return
        rows = self.of.row[users]  # -1, the additional row, for users that are not evaluated
        items = self.of.both[rows]
        scores = score(items.flatten(1).long().clamp_(min=0))
        self._ranks[rows] = sampled_ranks(scores.reshape(items.shape).flatten(0, 1), items.flatten(0, 1)).view(-1, 2)
        self._seen.index_fill_(0, rows, True)

    def missing(self) -> Tensor:
        """Evaluated users that are not ranked yet."""
        return self.of.users[~self._seen[:-1]]

    def tensors(self) -> dict[str, Tensor]:
        """Ranks so far, 0 for users that are not ranked yet."""
        return {"ranks": self._ranks[:-1]}

    def complete(self, tensors: dict[str, Tensor]) -> None:
        """Set the ranks of all users."""
        self._ranks[:-1] = tensors["ranks"]
        self._seen.fill_(True)

    def metrics(self) -> tuple[Report, Report]:
        """The metrics of validation and of test."""
        valid, test = self._ranks[:-1].T.cpu()
        light = self.of.light
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
        scores = score_all(users, score, self.of.split.data.n_items, self.width)[real]
        known = rows[real]
        held_out = self.of.candidates.valid[known, 0].long(), self.of.candidates.test[known, 0].long()
        ranks = full_ranks(scores, self._train(users[real]), *held_out)
        known = known.cpu()
        self.valid[known], self.test[known] = ranks.valid.cpu(), ranks.test.cpu()
        self.lists[known] = ranks.lists.cpu()

    @property
    def whole(self) -> Tensor:
        """[n_users]: who is ranked against all items."""
        return self.of.row >= 0

    def tensors(self) -> dict[str, Tensor]:
        """Ranks and lists so far, 0 for users that are not ranked yet."""
        return {"valid": self.valid, "test": self.test, "lists": self.lists}

    def complete(self, tensors: dict[str, Tensor]) -> None:
        """Set the ranks and lists of all users."""
        self.valid, self.test, self.lists = (tensors[name] for name in ("valid", "test", "lists"))

    def _train(self, users: Tensor) -> tuple[Tensor, Tensor]:
        """Row (index among these users) and item of each of their training pairs."""
        split, codes = self.of.split, users.cpu().numpy()
        items = [split.train[split.ptr[code] : split.ptr[code + 1]] for code in codes]
        row = np.repeat(np.arange(len(codes)), [len(part) for part in items])
        pairs = torch.from_numpy(np.stack([row, np.concatenate(items)])).to(users.device)
        return pairs[0], pairs[1]

    def metrics(self) -> tuple[Report, Report]:
        """The metrics of validation and of test. Test also has those of the lists, which leave out all known items."""
        light, n_items = self.of.light, self.of.split.data.n_items
        return (
            {"full": rank_metrics(self.valid), "full_light": rank_metrics(self.valid[light])},
            {
                "full": rank_metrics(self.test) | list_metrics(self.lists, n_items),
                "full_light": rank_metrics(self.test[light]) | list_metrics(self.lists[light], n_items),
            },
        )
