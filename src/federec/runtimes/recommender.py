"""A finished run as a recommender: the scores of many users for all items, and the best items of each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federec.data.interactions import Interactions, codes
from federec.errors import UserError, several, whole
from federec.evaluation.evaluator import Score, score_all
from federec.federation.state import State
from federec.runtimes.simulation import CentralTrainer, DeviceTrainer

Label = int | str
Users = Iterable[Label] | Literal["all"]
Exclude = Iterable[Label] | Mapping[Label, Iterable[Label]]
"""Items to leave out: for everybody, or by user."""

_POOLED = 256
"""Users whom a centralised method scores at a time."""

Codes = NDArray[np.int64]
Take = Callable[[Codes, Tensor], None]
"""Takes the places of users among those asked for, and their scores [C, n_items]."""


@dataclass
class Recommender:
    """The model of one round of a run. Where devices rank with rows that they tune in the round and then drop, the
    round is played again, once for all users that are asked for."""

    data: Interactions
    trainer: DeviceTrainer | CentralTrainer
    model: State
    """The state from which the round's model is made."""
    round: int

    def users(self, users: Users) -> Codes:
        """The codes of users."""
        if isinstance(users, str) and users == "all":
            return np.arange(self.data.n_users)
        return codes(self.data.user_ids, several(users, "users", "give a list of users, or 'all'"), "user")

    def items(self, items: Iterable[Label], name: str = "items") -> Codes:
        """The codes of items; `name` is the argument that has them."""
        return codes(self.data.item_ids, several(items, name, "give a list of items"), "item")

    def best(
        self, users: Codes, k: int, exclude: Exclude | None = None, exclude_known: bool = True
    ) -> tuple[Codes, NDArray[np.float32]]:
        """The k best items of each user and their scores, [users, k]; the item is -1 where fewer are left."""
        k = min(whole(k, "k"), self.data.n_items)
        row, out = self._left_out(users, exclude, exclude_known)
        items, values = np.full((len(users), k), -1, np.int64), np.empty((len(users), k), np.float32)

        def take(places: Codes, scores: Tensor) -> None:
            scores = torch.where(scores.isnan(), -torch.inf, scores)
            first, last = np.searchsorted(row, places), np.searchsorted(row, places, "right")
            for at, (begin, end) in enumerate(zip(first, last, strict=True)):
                scores[at, torch.from_numpy(out[begin:end])] = -torch.inf
            # Among equals the item that comes first in the data.
            ranked = scores.sort(dim=1, descending=True, stable=True)
            values[places], items[places] = ranked.values[:, :k].numpy(), ranked.indices[:, :k].numpy()

        self._ask(users, take)
        items[values == -np.inf] = -1
        return items, values

    def scores(self, users: Codes, items: Codes) -> NDArray[np.float32]:
        """Scores [users, items]."""
        out, columns = np.empty((len(users), len(items)), np.float32), torch.from_numpy(items)

        def take(places: Codes, scores: Tensor) -> None:
            out[places] = scores[:, columns].numpy()

        self._ask(users, take)
        return out

    def item_vectors(self) -> Tensor:
        """A vector for each item, [n_items, width]."""
        method = self.trainer.method
        vectors = method.item_vectors(self.model.shared)
        if vectors is None or vectors.shape[1] < 2:
            raise UserError(f"'{method.name}' shares no vectors of items, so it does not say which items are similar")
        return vectors.float().cpu()

    def _left_out(self, users: Codes, exclude: Exclude | None, known: bool) -> tuple[Codes, Codes]:
        """What is not recommended: the user's place among `users`, ascending, and the item."""
        place, item = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        if isinstance(exclude, Mapping) and exclude:
            excluding = self.users(exclude)
            lists = [several(items, f"exclude[{user!r}]", "give a list of items") for user, items in exclude.items()]
            flat, ends = self.items(itertools.chain(*lists)), np.cumsum([len(items) for items in lists])
            for user, own in zip(excluding, np.split(flat, ends[:-1]), strict=True):
                for at in np.flatnonzero(users == user):
                    item.append(own)
                    place.append(np.full(len(own), at))
        elif exclude is not None and not isinstance(exclude, Mapping):
            common = self.items(exclude, "exclude")
            item.append(np.tile(common, len(users)))
            place.append(np.repeat(np.arange(len(users)), len(common)))
        if known:
            rows = np.flatnonzero(np.isin(self.data.users, users))
            rows = rows[np.argsort(self.data.users[rows], kind="stable")]
            first = np.searchsorted(self.data.users[rows], users)
            counts = np.searchsorted(self.data.users[rows], users, "right") - first
            place.append(np.repeat(np.arange(len(users)), counts))
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            item.append(self.data.items[rows[np.repeat(first, counts) + within]].astype(np.int64))
        places, items_ = np.concatenate(place), np.concatenate(item)
        order = np.argsort(places, kind="stable")
        return places[order], items_[order]

    def _ask(self, users: Codes, take: Take) -> None:
        """Hand the scores of these users to `take`, a few users at a time and in any order."""
        if not len(users):
            return
        asked, trainer = torch.from_numpy(users).to(self.trainer.device), self.trainer
        if isinstance(trainer, CentralTrainer):
            for places in np.split(np.arange(len(users)), range(_POOLED, len(users), _POOLED)):
                take(places, trainer.scores(self.model, asked[places]).cpu())
            return
        scoring, model, left = _Scoring(trainer, users, take), self.model, asked.unique()
        if trainer.own:
            model, learns = model.copy(), trainer.devices.lengths(left, trainer.method.negatives) > 0
            # Stacked, not fused: a kernel would score only users who are evaluated.
            trainer.stacked.play(model, left[learns], self.round, [scoring], list)
            left = left[~learns]  # they have no rows of their own, and rank with the server's after the round
            model = trainer.after(self.model, self.round) if len(left) else model
        for some in left.split(trainer.engine.full) if len(left) else ():
            scoring.take(some, trainer.engine.score(model, some, scoring.items.expand(len(some), -1)))


class _Scoring:
    """Takes the scores of all items instead of ranking by them."""

    whole = None

    def __init__(self, trainer: DeviceTrainer, users: Codes, take: Take) -> None:
        self.width, self.n_items = trainer.width, trainer.devices.n_items
        self.items = torch.arange(trainer.devices.n_items, device=trainer.device)
        self.order, self.give = np.argsort(users, kind="stable"), take
        self.sorted = users[self.order]

    def add(self, users: Tensor, score: Score) -> None:
        self.take(users, score_all(users, score, self.n_items, self.width))

    def take(self, users: Tensor, scores: Tensor) -> None:
        """Give the scores on, for every place that asks for one of these users: a user may be asked for twice."""
        found = users.cpu().numpy()
        first, last = np.searchsorted(self.sorted, found), np.searchsorted(self.sorted, found, "right")
        places = [self.order[begin:end] for begin, end in zip(first, last, strict=True)]
        repeats = torch.from_numpy(last - first)
        self.give(np.concatenate(places), scores.cpu().repeat_interleave(repeats, 0))
