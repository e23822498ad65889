"""Evaluation of all users, a few at a time, with any function that scores items for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from federec.data.split import HeldOut, Split, ragged
from federec.evaluation.candidates import Candidates, sample
from federec.evaluation.metrics import Metrics, lightest_quarter, list_metrics, rank_metrics
from federec.evaluation.ranking import TOP, Pairs, full_ranks, sampled_ranks, validation_ranks
from federec.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

Score: TypeAlias = "Callable[[Tensor], Tensor]"
"""Items [C, K] -> scores [C, K]; row c belongs to the c-th of the users at hand."""

Report = dict[str, Metrics]
"""`sampled`, `full`, and each for the quarter of users with the fewest interactions: `sampled_light`, `full_light`. For
test also `full_cold_users`, of users without training items, and `full_cold_items`, of items that nobody trained on,
where there are any."""

BLOCK_BYTES = {"cpu": 4 * 2**20, "cuda": 32 * 2**20}
"""What scoring a block of items may take: little enough for a CPU's cache, enough for a GPU to be worth a launch."""


class AllScores:
    """A `Score` of some users whose scores of all items are known."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    def __call__(self, items: Tensor) -> Tensor:
        return self.scores.gather(1, items)


def score_all(users: Tensor, score: Score, n_items: int, width: int) -> Tensor:
    """The users' scores of all items, block by block; scoring holds `width` values for each (user, item) pair."""
    if isinstance(score, AllScores):
        return score.scores
    size = max(1, BLOCK_BYTES[users.device.type] // (4 * width * len(users)))
    blocks = torch.arange(n_items, device=users.device).split(size)
    return torch.cat([score(block.expand(len(users), -1)) for block in blocks], 1)


def train_pairs(split: Split, users: Tensor) -> Pairs:
    """Row (index among these users) and item of each of their training pairs."""
    row, items = ragged(split.ptr, split.train, users.cpu().numpy())
    pairs = torch.from_numpy(np.stack([row, items])).to(users.device)
    return pairs[0], pairs[1]


@dataclass(frozen=True)
class Part:
    """The held-out items of validation or of test: [P] pairs of an evaluated user and an item, user by user."""

    ptr: Tensor
    """[E + 1] where the pairs of each evaluated user begin."""
    items: Tensor
    owner: Tensor
    """The row of each pair's user among the evaluated users; this and what follows is always on the CPU."""
    light: Tensor
    """Rows of the quarter of users with the fewest training interactions, of those that have a pair."""
    cold_users: Tensor
    """[P] whether the pair's user has no training item."""
    cold_items: Tensor
    """[P] whether nobody trained on the pair's item."""

    @staticmethod
    def of(held_out: HeldOut, split: Split, users: np.ndarray, device: torch.device | str) -> Part:
        owner, items = ragged(held_out.ptr, held_out.items, users)
        first = np.unique(owner * split.data.n_items + items, return_index=True)[1]
        first.sort()  # an item that a user repeats is one place in the list
        owner, items = owner[first], items[first]
        trained = np.diff(split.ptr)[users]
        rows = np.unique(owner)
        light = rows[lightest_quarter(torch.from_numpy(trained[rows])).numpy()]
        ptr = torch.from_numpy(np.searchsorted(owner, np.arange(len(users) + 1))).to(device)
        codes = torch.from_numpy(items.astype(np.int64)).to(device)
        rest = owner, light, trained[owner] == 0, split.cold[items]
        return Part(ptr, codes, *map(torch.from_numpy, rest))

    def pairs(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The pairs of these evaluated users, and the position in `rows` of each one's user."""
        if self.one_each:
            return rows, torch.arange(len(rows), device=rows.device)
        counts = self.ptr[rows + 1] - self.ptr[rows]
        owner = torch.arange(len(rows), device=rows.device).repeat_interleave(counts)
        shift = self.ptr[rows] - (counts.cumsum(0) - counts)
        return torch.arange(len(owner), device=rows.device) + shift[owner], owner

    @cached_property
    def several(self) -> bool:
        """Whether a user has several pairs."""
        return bool((self.owner.diff() == 0).any())

    @cached_property
    def one_each(self) -> bool:
        """Whether every evaluated user has one pair, as under leave-one-out."""
        return len(self.owner) == len(self.ptr) - 1 and not self.several

    @cached_property
    def rows(self) -> Tensor:
        """Rows of the users that have a pair."""
        rows: Tensor = self.owner.unique_consecutive()
        return rows

    def metrics(self, ranks: Tensor, chosen: Tensor | None = None) -> Metrics:
        """Metrics of the pairs' ranks [P], or of some of the pairs: a mask [P]."""
        owner = self.owner
        if chosen is not None:
            ranks, owner = ranks[chosen], owner[chosen]
        return rank_metrics(ranks, owner if self.several else None)

    @property
    def light_pairs(self) -> Tensor:
        """[P] whether the pair's user is light."""
        light: Tensor = torch.isin(self.owner, self.light)
        return light


class Asked(NamedTuple):
    """What a ranking against candidates asks of some users."""

    rows: Tensor
    """[C] their rows among the evaluated users, -1 for those that are not."""
    items: Tensor
    """[C, 2, 1 + 99] candidates for validation and for test; -1 where there is none."""
    codes: Tensor
    """[C, 2 * (1 + 99)] the same, with 0 where there is none: items to score."""


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
        codes = candidates.users.numpy()
        self.parts = tuple(Part.of(part, split, codes, device) for part in (split.valid, split.test))
        """Validation and test."""
        self.rank: Callable[[Tensor], Tensor] = sampled_ranks
        """Ranks the first column of scores among all columns; an engine may know a faster way."""
        self.rank_held_out: Callable[[Tensor, Tensor, Pairs], Tensor] = self._rank_held_out
        """Ranks validation items by scores [C, n_items] of some users, which it leaves as they are: `validation_ranks`.
        Here, too, an engine may know a faster way."""
        self._asked: deque[tuple[Tensor, Asked]] = deque(maxlen=4)

    @cached_property
    def complete(self) -> bool:
        """Whether every evaluated user has all candidates."""
        return bool((self.both >= 0).all())

    @cached_property
    def _everything(self) -> Asked:
        """What is asked of all evaluated users."""
        return self._ask(torch.arange(len(self.users), device=self.users.device))

    def _ask(self, rows: Tensor) -> Asked:
        items = self.both[rows]
        return Asked(rows, items, items.flatten(1).long().clamp_(min=0))

    def _rank_held_out(self, scores: Tensor, users: Tensor, held_out: Pairs) -> Tensor:
        return validation_ranks(scores.clone(), train_pairs(self.split, users), held_out)

    def asked(self, users: Tensor) -> Asked:
        """What is asked of these users. What was found for the last ones is kept, because those of a round are often
        the same, and finding it may take longer than ranking; on a CPU also what is asked of all evaluated ones."""
        for known, asked in self._asked:
            if known is users:
                return asked
        rows = self.row[users]  # -1, the additional row of a ranking, for users that are not evaluated
        everybody = not users.is_cuda and torch.equal(rows, torch.arange(len(self.users)))
        asked = self._everything if everybody else self._ask(rows)
        self._asked.append((users, asked))
        return asked

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
        self._seen: list[Tensor] | None = []
        """Rows of those who are ranked; None: all are."""

    @cached_property
    def _ranks(self) -> Tensor:
        """[E + 1, 2]: one row more than evaluated users. All others write their ranks there, and nobody reads them. So
        nothing has to wait for a GPU to count the evaluated ones. Made when it is needed: by then a GPU has work."""
        return torch.zeros(len(self.of.users) + 1, 2, dtype=torch.int64, device=self.of.users.device)

    @property
    def valid(self) -> Tensor:
        """Each evaluated user's rank of its first validation item; -1 where it has none."""
        return self._ranks[:-1, 0].where(self.of.both[:, 0, 0] >= 0, -1)

    @property
    def test(self) -> Tensor:
        """Each evaluated user's rank of its first test item; -1 where it has none."""
        return self._ranks[:-1, 1].where(self.of.both[:, 1, 0] >= 0, -1)

    def add(self, users: Tensor, score: Score) -> None:
        """Rank for these users; those that are not evaluated are ignored."""
        if not len(users):
            return
        rows, items, codes = self.of.asked(users)
        shape = 2 * len(rows), items.shape[2]
        scores = score(codes).reshape(shape)
        ranks = self.of.rank(scores) if self.of.complete else sampled_ranks(scores, items.view(shape))
        self._take(rows, ranks.view(-1, 2))

    def add_ranks(self, users: Tensor, rank: Callable[[Tensor, int], Tensor]) -> None:
        """The same by an engine that ranks itself, where every user has all candidates: `rank` takes lists of items
        side by side, [C, 2 * (1 + 99)], and their number, and returns the ranks of the first of each, [C, 2]."""
        rows, _, codes = self.of.asked(users)
        self._take(rows, rank(codes, 2))

    def _take(self, rows: Tensor, ranks: Tensor) -> None:
        self._ranks[rows] = ranks.to(self._ranks.dtype)
        if self._seen is not None:
            self._seen.append(rows)

    def missing(self) -> Tensor:
        """Evaluated users that are not ranked yet."""
        if self._seen is None:
            return self.of.users[:0]
        if not self._seen:  # no GPU has to count them
            return self.of.users
        missing = torch.ones_like(self._ranks[:, 0], dtype=torch.bool).index_fill_(0, torch.cat(self._seen), False)
        return self.of.users[missing[:-1]]

    def tensors(self) -> dict[str, Tensor]:
        """Ranks so far, 0 for users that are not ranked yet."""
        return {"ranks": self._ranks[:-1]}

    def complete(self, tensors: dict[str, Tensor]) -> None:
        """Set the ranks of all users."""
        self._ranks[:-1] = tensors["ranks"]
        self._seen = None

    def metrics(self) -> tuple[Report, Report]:
        """The metrics of validation and of test."""
        valid, test = self._ranks[:-1].T.cpu().numpy()
        return _sampled(self.of.parts[0], valid), _sampled(self.of.parts[1], test)


def _sampled(part: Part, ranks: NDArray[np.int64]) -> Report:
    """The metrics of a part from each evaluated user's rank. By NumPy: torch would wake its threads for this."""
    chosen = {"sampled": part.rows, "sampled_light": part.light}
    return {name: rank_metrics(ranks[rows.numpy()]) for name, rows in chosen.items()}


class Full:
    """Ranks among all items, and the recommendation lists."""

    def __init__(self, evaluator: Evaluator, width: int) -> None:
        self.of = evaluator
        self.width = width
        self.valid, self.test = (torch.zeros(len(part.owner), dtype=torch.int64) for part in evaluator.parts)
        """The rank of each held-out item, in the order of the pairs of `Evaluator.parts`."""
        self.lists = torch.zeros(len(evaluator.users), min(TOP, evaluator.split.data.n_items), dtype=torch.int64)

    def add(self, users: Tensor, score: Score) -> None:
        """Rank for these users, item block by item block."""
        rows = self.of.row[users]
        real = rows >= 0
        if not bool(real.any()):
            return
        scores = score_all(users, score, self.of.split.data.n_items, self.width)[real]
        known, parts = rows[real], self.of.parts
        (valid, valid_row), (test, test_row) = (part.pairs(known) for part in parts)
        held_out = (valid_row, parts[0].items[valid]), (test_row, parts[1].items[test])
        ranks = full_ranks(scores, train_pairs(self.of.split, users[real]), *held_out)
        self.valid[valid.cpu()], self.test[test.cpu()] = ranks.valid.cpu(), ranks.test.cpu()
        self.lists[known.cpu()] = ranks.lists.cpu()

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

    def metrics(self) -> tuple[Report, Report]:
        """The metrics of validation and of test. Test also has those of the lists, which leave out all known items, and
        those of cold users and items."""
        valid, test = self.of.parts
        n_items, light = self.of.split.data.n_items, test.light_pairs
        tested = {
            "full": test.metrics(self.test) | list_metrics(self.lists[test.rows], n_items),
            "full_light": test.metrics(self.test, light) | list_metrics(self.lists[test.light], n_items),
        }
        for name, cold in (("full_cold_users", test.cold_users), ("full_cold_items", test.cold_items)):
            if cold.any():
                tested[name] = test.metrics(self.test, cold)
        return {"full": valid.metrics(self.valid), "full_light": valid.metrics(self.valid, valid.light_pairs)}, tested
