"""FedALS - implicit alternating least squares (Hu et al., ICDM 2008), federated exactly.

    min sum_ij c_ij (x_ij - p_i . v_j)^2 + l2 (|P|^2 + |V|^2)       c_ij = 1 + alpha x_ij

A round is one sweep. The server sends the rows v_j of a device's items and V'V; the device solves for its own vector,
    p_i = (V'V + alpha sum_{j in i} v_j v_j' + l2 I)^-1 (1 + alpha) sum_{j in i} v_j
and sends p_i p_i', and for each item of its history p_i p_i' and p_i. The server needs only their sums,
    v_j = (sum_i p_i p_i' + alpha sum_{i: j in i} p_i p_i' + l2 I)^-1 (1 + alpha) sum_{i: j in i} p_i
so secure aggregation fits, and the result is that of centralised ALS. Of p p' only the symmetric half travels.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from federec.cohort.cohort import Cohort
from federec.cohort.layers import Param, Params, dot
from federec.cohort.rows import Rows
from federec.methods.base import DeviceMethod


class FedALS(DeviceMethod):
    """Weighted matrix factorisation: devices solve for user vectors, the server for item rows.

    >>> fr.train(fr.FedALS(dim=8), data, rounds=1).method.name
    'fedals'
    """

    name: ClassVar[str] = "fedals"
    paper: ClassVar[str] = "ours, after Hu et al., Collaborative Filtering for Implicit Feedback Datasets, ICDM 2008"
    default_rounds: ClassVar[int] = 15
    sums: ClassVar[bool] = True
    closed_form: ClassVar[bool] = True

    negatives: Literal[0] = 0
    """None are drawn: every item that is not in a history counts as zero."""
    dim: PositiveInt = 32
    """Width of user vectors and item rows."""
    alpha: PositiveFloat = 5.0
    """Extra confidence of an observed interaction."""
    l2: PositiveFloat = 20.0
    """Ridge penalty."""
    upload: Literal["dense", "sparse"] = "dense"
    """How bytes are counted: `dense`, values for all items, as secure aggregation needs it; `sparse`, code and values
    of the device's own items, which says what they are."""

    @property
    def half(self) -> int:
        """Values in one half of a symmetric matrix."""
        return self.dim * (self.dim + 1) // 2

    def shared(self) -> dict[str, Param]:
        return {"items": Param((self.dim,), scale=0.1, rows=True)}

    def private(self) -> dict[str, Param]:
        return {"user": Param((self.dim,), "zeros")}

    def sends(self) -> dict[str, Param]:
        return {
            "all": Param((self.half,)),
            "outer": Param((self.half,), rows=True),
            "linked": Param((self.dim,), rows=True),
        }

    def fetch(self, shared: Params, users: Tensor, rows: Rows) -> tuple[Params, Params]:
        items = shared["items"]
        return {"items": items[rows.ids]}, {"outer": (items.T @ items).expand(len(users), -1, -1)}

    def fit(self, cohort: Cohort) -> None:
        assert cohort.history is not None
        rows = cohort.tables["items"][cohort.own_rows()] * cohort.history.real[:, :, None]
        a = torch.baddbmm(cohort.params["outer"] + self.ridge(rows), rows.mT, rows, alpha=self.alpha)
        cohort.params["user"] = torch.linalg.solve(a, (1 + self.alpha) * rows.sum(1))

    def ridge(self, like: Tensor) -> Tensor:
        """l2 I."""
        return self.l2 * torch.eye(self.dim, dtype=like.dtype, device=like.device)

    def message(self, cohort: Cohort, shared: Params) -> Params:
        user, owner = cohort.params["user"], cohort.rows.owner
        outer = fold(user[:, :, None] * user[:, None, :])
        return {"all": outer, "outer": outer[owner], "linked": user[owner]}

    def upload_bytes(self, cohort: Cohort, message: Params) -> Tensor | None:
        if self.upload == "sparse":
            return None
        sizes = {name: param.shape[0] * (cohort.n_items if param.rows else 1) for name, param in self.sends().items()}
        return torch.full_like(cohort.users, 4 * sum(sizes.values()))

    def download_bytes(self, cohort: Cohort) -> Tensor:
        return cohort.rows.counts(len(cohort)) * (4 + 4 * self.dim) + 4 * self.half

    def server_step(self, shared: Params, mean: Params, memory: Params) -> Params:
        base = unfold(mean["all"], self.dim) + self.ridge(mean["all"])
        a = base + self.alpha * unfold(mean["outer"], self.dim)
        return {"items": torch.linalg.solve(a, (1 + self.alpha) * mean["linked"])}

    def unknown(self, shared: Params, memory: Params) -> Tensor:
        lengths: Tensor = shared["items"].norm(dim=1)
        return lengths  # the penalty keeps rows short that few devices pull

    def score(self, p: Params) -> Tensor:
        return dot(p["user"], p["items"])


def fold(matrix: Tensor) -> Tensor:
    """The lower half [..., d (d + 1) / 2] of symmetric matrices [..., d, d]."""
    row, column = torch.tril_indices(matrix.shape[-1], matrix.shape[-1], device=matrix.device)
    return matrix[..., row, column]


def unfold(half: Tensor, dim: int) -> Tensor:
    """Symmetric matrices from their lower halves."""
    row, column = torch.tril_indices(dim, dim, device=half.device)
    matrix = half.new_zeros(*half.shape[:-1], dim, dim)
    matrix[..., row, column] = half
    matrix[..., column, row] = half
    return matrix
