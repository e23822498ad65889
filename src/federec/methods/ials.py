"""iALS - Collaborative Filtering for Implicit Feedback Datasets (Hu, Koren, Volinsky, ICDM 2008).

    min sum_ij c_ij (x_ij - p_i . v_j)^2 + l2 (|P|^2 + |V|^2)       c_ij = 1 + alpha x_ij

Alternating: with V fixed,  p_i = (V'V + alpha sum_{j in i} v_j v_j' + l2 I)^-1 (1 + alpha) sum_{j in i} v_j,
and the same for v_j with P fixed. A round is one sweep over users and items.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from federec.cohort.chunks import plan
from federec.cohort.layers import Params
from federec.data.split import Split
from federec.methods.central import CentralMethod

_BLOCK = 20_000  # interactions solved for at a time, padding included


class IALS(CentralMethod):
    """Centralised reference: weighted matrix factorisation by alternating least squares.

    >>> fr.train(fr.IALS(dim=8), data, rounds=1).method.name
    'ials'
    """

    name: ClassVar[str] = "ials"
    paper: ClassVar[str] = "Hu et al., Collaborative Filtering for Implicit Feedback Datasets, ICDM 2008"
    default_rounds: ClassVar[int] = 15

    dim: PositiveInt = 32
    """Width of user vectors and item rows."""
    alpha: PositiveFloat = 5.0
    """Extra confidence of an observed interaction."""
    l2: PositiveFloat = 20.0
    """Ridge penalty."""

    def start(self, split: Split, seed: int) -> Params:
        generator = torch.Generator().manual_seed(seed)
        return {"items": 0.1 * torch.randn(split.data.n_items, self.dim, generator=generator)}

    def refine(self, model: Params, split: Split, round_: int) -> Params:
        ptr, train, *_ = split.distinct  # x_ij is 0 or 1, however often the data repeats a pair
        by_item = np.argsort(train, kind="stable")
        users = np.repeat(np.arange(split.data.n_users), np.diff(ptr))[by_item]
        item_ptr = np.concatenate([[0], np.cumsum(np.bincount(train, minlength=split.data.n_items))])
        people = self.solve(model["items"], ptr, train)
        return {"users": people, "items": self.solve(people, item_ptr, users)}

    def solve(self, fixed: Tensor, ptr: NDArray[np.int64], others: NDArray[np.integer]) -> Tensor:
        """The free side in closed form: row r is linked to the fixed rows others[ptr[r]:ptr[r + 1]]."""
        base = fixed.T @ fixed + self.l2 * torch.eye(fixed.shape[1])
        solved = torch.zeros(len(ptr) - 1, fixed.shape[1])
        counts = np.diff(ptr)
        order = np.argsort(-counts, kind="stable")
        padded = torch.cat([fixed, torch.zeros(1, fixed.shape[1])])  # the last row stands for none
        for part in plan(counts[order], 1, 1, _BLOCK):  # rows with about as many links together, as one product
            some, column = order[part], np.arange(counts[order[part.start]])
            linked = np.full((len(some), len(column)), len(fixed))
            real = column < counts[some, None]
            linked[real] = others[(ptr[some, None] + column)[real]]
            rows = padded[torch.from_numpy(linked).to(fixed.device)]
            found = torch.linalg.solve(base + self.alpha * rows.mT @ rows, (1 + self.alpha) * rows.sum(1))
            solved[torch.from_numpy(some).to(fixed.device)] = found
        return solved

    def scores(self, model: Params, split: Split, users: Tensor) -> Tensor:
        return model["users"][users] @ model["items"].T
