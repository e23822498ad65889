"""EASE - Embarrassingly Shallow Autoencoders for Sparse Data (Steck, WWW 2019).

    B = argmin |X - XB|^2 + l2 |B|^2   with  diag(B) = 0
    P = (X'X + l2 I)^-1,   B_jk = -P_jk / P_kk  (j != k),   scores = X B

Closed form, so a round is one value of l2; validation picks the round and with it l2.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from federec.cohort.layers import Params
from federec.data.split import Split, ragged
from federec.mathematics.ridge import inverse
from federec.mathematics.weighted import weighted_sums
from federec.methods.central import CentralMethod, history_matrix

_BLOCK = 512


class EASE(CentralMethod):
    """Centralised reference: item-item regression in closed form.

    >>> fr.EASE(l2=[100.0, 1000.0])
    EASE(l2=(100.0, 1000.0))
    """

    name: ClassVar[str] = "ease"
    paper: ClassVar[str] = "Steck, Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019"
    reads_history: ClassVar[bool] = True
    l2: tuple[PositiveFloat, ...] = Field((30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0), min_length=1)
    """Ridge penalties to try, one a round. Far apart: among near ones validation would choose by chance."""

    @property
    def most_rounds(self) -> int:
        return len(self.l2)

    def tried(self, round_: int) -> dict[str, Any]:
        return {"l2": [self.l2[round_ - 1]]}

    def refine(self, model: Params, split: Split, round_: int) -> Params:
        gram = torch.zeros(split.data.n_items, split.data.n_items)
        for block in torch.arange(split.data.n_users).split(_BLOCK):
            x = history_matrix(split, block)
            gram += x.T @ x
        return {"weights": item_weights(gram, self.l2[round_ - 1])}

    def item_vectors(self, model: Params) -> Tensor:
        return model["weights"]

    def scores(self, model: Params, split: Split, users: Tensor) -> Tensor:
        ptr, train, *_ = split.distinct
        owner, items = (torch.from_numpy(part) for part in ragged(ptr, train, users.cpu().numpy()))
        table = model["weights"]
        places, counts = items.long().to(table.device), torch.bincount(owner, minlength=len(users)).to(table.device)
        return weighted_sums(counts, places, torch.ones_like(places, dtype=table.dtype), table)


def item_weights(gram: Tensor, l2: float) -> Tensor:
    """B from the co-occurrence X'X."""
    a = gram.double()
    a.diagonal().add_(l2)
    precision = inverse(a)
    weights = precision.div_(-precision.diagonal().clone())
    weights.fill_diagonal_(0.0)
    return weights.float()
