"""What a server answers from: each user's list, made once when it starts, and scores for lists of items."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from federec.cohort.draw import History
from federec.cohort.layers import Params
from federec.errors import UserError
from federec.export.model import Trained
from federec.federation.newcomers import Newcomers, devices_of
from federec.methods.fedease import FedEASE
from federec.network.catalogue import Catalogue
from federec.serving.written import SHORT, Beginnings, Ranked, items_of, objects

MOST = 100
"""Items in a list, at most."""
LONGEST = 1000
"""Items of somebody who is not named, at most."""

Codes = NDArray[np.int64]
Floats = NDArray[np.float32]


class Unknown(Exception):
    """A user or an item that the model does not have. Its text names it."""


@dataclass(frozen=True)
class Served:
    """A model that is ready to answer. Nothing in it changes, so processes can share it."""

    name: str
    catalogue: Catalogue
    rows: dict[str, int]
    """A user's label -> the row of its list; empty for a federation's run, whose users' parameters are on devices."""
    lists: NDArray[np.int32]
    """[users, MOST] item codes, best first, without the items that the user has; -1 where no more are left."""
    scores: Floats
    """[users, MOST] scores of these items."""
    newcomers: Newcomers | None
    """Scores for lists of items; None where the method has none for somebody new."""

    @staticmethod
    def load(path: str | Path) -> Served:
        """The model in a run's folder. The round is played once where devices rank with rows that they tune in it."""
        model = Trained.load(path)
        name, run = "+".join((model.method.name, *model.method.plugins)), model.run
        try:
            newcomers = Newcomers(model.method, model.state, model.n_items, model.seed, model.round)
            _ = newcomers.unknown, newcomers.linear  # now, not at the first request
        except UserError:
            if run is None:
                raise
            newcomers = None
        if run is None:
            none = np.empty((0, 0), np.int32)
            served = Served(name, model.catalogue, {}, none, none.astype(np.float32), newcomers)
        else:
            items, scores = run.best_items(MOST)
            rows = {str(label): row for row, label in enumerate(run.data.user_ids)}
            served = Served(name, model.catalogue, rows, items.astype(np.int32), scores, newcomers)
        _ = served.items, served.beginnings  # now: processes that are forked later share them
        return served

    @cached_property
    def items(self) -> tuple[str, ...]:
        """By code, the object of each item in JSON, up to its score."""
        return items_of(self.catalogue)

    @cached_property
    def beginnings(self) -> Beginnings:
        """By row, the first items of each user's list in JSON."""
        return Beginnings.of(objects(self.items, self._listed(row, SHORT)) for row in range(len(self.lists)))

    def text_of_user(self, label: str, k: int) -> bytes:
        """A user's k best items in JSON, with commas between them."""
        row = self._row(label)
        if k <= SHORT:
            return self.beginnings.first(row, k)
        return ", ".join(objects(self.items, self._listed(row, k))).encode()

    def text_of_items(self, labels: list[str], k: int) -> bytes:
        """What `of_items` gives in JSON, with commas between the items."""
        return ", ".join(objects(self.items, self.of_items(labels, k))).encode()

    def of_user(self, label: str, k: int) -> Ranked:
        """A user's k best items."""
        return self._listed(self._row(label), k)

    def _row(self, label: str) -> int:
        row = self.rows.get(label)
        if row is None:
            raise Unknown(f"no user is called '{label:.80}'")
        return row

    def _listed(self, row: int, k: int) -> Ranked:
        fine = np.isfinite(self.scores[row]) & (self.lists[row] >= 0)
        codes: Codes = self.lists[row, fine][:k].astype(np.int64)
        return codes, self.scores[row, fine][:k]

    def of_items(self, labels: list[str], k: int) -> Ranked:
        """The k best other items for somebody who has these, oldest first; for nobody known, if there are none."""
        codes = self.catalogue.codes
        try:
            known = [codes[label] for label in dict.fromkeys(reversed(labels))]  # of a repeated item the newest counts
        except KeyError as missing:
            raise Unknown(f"no item is called '{missing.args[0]:.80}'") from None
        assert self.newcomers is not None
        history = np.array(known[::-1], np.int64)
        scores = self.newcomers.unknown.copy() if not known else self.scored(history)
        scores[history] = -np.inf
        return best(scores, min(k, len(scores) - len(history)))

    def scored(self, history: Codes) -> Floats:
        """Scores [n_items] for somebody with these items."""
        newcomers = self.newcomers
        assert newcomers is not None
        if newcomers.linear is not None:
            return newcomers.linear.scores(history)
        if self.pair_weights is not None:
            return pair_scores(self.pair_weights, newcomers.state.shared, history)
        found: Floats = newcomers.scores([history])[0]
        return found

    @cached_property
    def pair_weights(self) -> Floats | None:
        """Weights of a history's items, where scores are sums of a matrix' rows: then only its rows are read."""
        if self.newcomers is None or type(self.newcomers.method) is not FedEASE:
            return None
        return pair_weights(self.newcomers.method, self.newcomers.state.shared)

    @property
    def quick(self) -> bool:
        """Whether scores for a list of items take about a millisecond."""
        return self.newcomers is not None and (self.newcomers.linear is not None or self.pair_weights is not None)


def best(scores: Floats, k: int) -> Ranked:
    """The k items with the highest scores, best first; among equals the one that comes first. Those whose score is
    not finite are left out."""
    scores = np.where(np.isfinite(scores), scores, -np.inf)
    k = min(k, int(np.count_nonzero(scores > -np.inf)))
    if k <= 0:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    # The k-th highest of the maxima of groups is not above that of all scores, and found sooner.
    peaks = scores[: len(scores) // 16 * 16].reshape(16, -1).max(0) if len(scores) >= 16 * k else scores
    least = np.partition(peaks, len(peaks) - k)[len(peaks) - k]
    found = np.flatnonzero(scores >= least)
    order = found[np.argsort(-scores[found], kind="stable")][:k]
    return order, scores[order]


def pair_weights(method: FedEASE, shared: Params) -> Floats:
    """[LONGEST] weights of the items of a history, oldest first. A shorter one has the last of them: they depend on how
    many items are newer."""
    count = torch.tensor([LONGEST])
    history = History(torch.zeros(1), torch.zeros(1, LONGEST), count, devices_of([], 0))
    found: Floats = method.item_weight(shared, history)[0].numpy()
    return found


def pair_scores(weights: Floats, shared: Params, history: Codes) -> Floats:
    """FedEASE's scores for one history, from the rows of its items only: the whole matrix takes fifty times as long."""
    found: Floats = weights[LONGEST - len(history) :] @ shared["weights"].numpy()[history]
    return found
