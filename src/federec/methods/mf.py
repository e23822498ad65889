"""MF - Matrix Factorization Techniques for Recommender Systems (Koren et al., Computer 2009), for implicit feedback.

    r_ij = sigma(p_i . v_j)

FedMF's model trained on pooled data: cross-entropy, fresh negatives, Adam.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import embedding

from federec.cohort.layers import Param, Params
from federec.data.split import Split
from federec.methods.pooled import PooledMethod


class MF(PooledMethod):
    """Centralised reference: FedMF's model on pooled data.

    >>> fr.train(fr.MF(dim=8), data, rounds=1).method.name
    'mf'
    """

    name: ClassVar[str] = "mf"
    paper: ClassVar[str] = "Koren et al., Matrix Factorization Techniques for Recommender Systems, Computer 2009"
    recorded: ClassVar[bool] = True

    dim: PositiveInt = 32
    """Width of user vectors and item rows."""
    scale: NonNegativeFloat = 0.1
    """Standard deviation of the first values."""

    def user_params(self) -> dict[str, Param]:
        return {"users": Param((self.dim,), scale=self.scale, rows=True)}

    def item_params(self) -> dict[str, Param]:
        return {"items": Param((self.dim,), scale=self.scale, rows=True)}

    def score(self, p: Params, users: Tensor, items: Tensor) -> Tensor:
        return (embedding(users, p["users"]) * embedding(items, p["items"])).sum(1)

    def gradient(self, p: Params, *batch: Tensor) -> Params:
        users, items, labels = batch
        mine, theirs = embedding(users, p["users"]), embedding(items, p["items"])
        error = ((mine * theirs).sum(1).sigmoid() - labels)[:, None] / len(labels)
        return {
            "users": torch.zeros_like(p["users"]).index_add_(0, users, error * theirs),
            "items": torch.zeros_like(p["items"]).index_add_(0, items, error * mine),
        }

    def scores(self, model: Params, split: Split, users: Tensor) -> Tensor:
        return model["users"][users] @ model["items"].T
