"""Centralised references, not federated methods: they see all histories and show what federation costs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from federec.cohort.draw import Devices
from federec.cohort.layers import Params
from federec.data.split import Split, ragged
from federec.methods.base import Method


class CentralMethod(Method):
    """A method fitted on pooled data. Each round refits or refines; the round is chosen on validation as ever.

    New tensors come to be where the run takes place: its trainer says so to torch.

    >>> import torch
    >>> class Newest(fr.CentralMethod):
    ...     default_rounds = 1
    ...     def refine(self, model, split, round_):
    ...         return {"codes": torch.arange(split.data.n_items).float()}
    ...     def scores(self, model, split, users):
    ...         return model["codes"].expand(len(users), -1)
    >>> run = fr.train(Newest(), data)
    """

    def start(self, split: Split, seed: int) -> Params:
        """First values."""
        return {}

    def refine(self, model: Params, split: Split, round_: int) -> Params:
        """The model of this round."""
        raise NotImplementedError(f"{type(self).__name__}.refine")

    def learn(self, model: Params, split: Split, devices: Devices, seed: int, round_: int) -> Params:
        """The model of this round for a method that draws samples: `devices` says what the protocol lets it draw."""
        return self.refine(model, split, round_)

    def item_vectors(self, model: Params) -> Tensor | None:
        """By default the table `items`, where the model has one."""
        return model.get("items")

    def scores(self, model: Params, split: Split, users: Tensor) -> Tensor:
        """Scores [C, n_items] of all items."""
        raise NotImplementedError(f"{type(self).__name__}.scores")


def history_matrix(split: Split, users: Tensor) -> Tensor:
    """[C, n_items] with 1 where a user's training history has the item; for a few users at a time."""
    row, items = ragged(split.ptr, split.train, users.cpu().numpy())
    matrix = torch.zeros(len(users), split.data.n_items)
    matrix[torch.from_numpy(row), torch.from_numpy(items.astype(np.int64))] = 1.0
    return matrix
