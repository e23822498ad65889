"""NCF - Neural Collaborative Filtering (He et al., WWW 2017), the MLP model.

    r_ij = sigma(f([p_i, v_j]))          f: an MLP, ReLU between its layers

FedNCF's model trained on pooled data: cross-entropy, fresh negatives, Adam.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import embedding

from federec.cohort.layers import Param, Params, mlp, mlp_params
from federec.data.split import Split
from federec.methods.pooled import PooledMethod

_USERS = 16  # scored at a time


class NCF(PooledMethod):
    """Centralised reference: FedNCF's model on pooled data.

    >>> fr.NCF(dim=8).dim
    8
    """

    name: ClassVar[str] = "ncf"
    paper: ClassVar[str] = "He et al., Neural Collaborative Filtering, WWW 2017"

    dim: PositiveInt = 32
    """Width of user vectors and item rows."""
    hidden: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (32, 16, 8)
    """Widths of the MLP's hidden layers; its input is 2 * dim wide."""
    scale: NonNegativeFloat = 0.01
    """Standard deviation of the first user vectors and item rows."""

    def user_params(self) -> dict[str, Param]:
        return {"users": Param((self.dim,), scale=self.scale, rows=True)}

    def item_params(self) -> dict[str, Param]:
        rows = {"items": Param((self.dim,), scale=self.scale, rows=True)}
        return rows | mlp_params("mlp", (2 * self.dim, *self.hidden, 1))

    def score(self, p: Params, users: Tensor, items: Tensor) -> Tensor:
        pair = torch.cat([embedding(users, p["users"]), embedding(items, p["items"])], 1)
        return mlp(_layers(p, 1), "mlp", pair[None])[0]

    def scores(self, model: Params, split: Split, users: Tensor) -> Tensor:
        blocks = []
        for some in model["users"][users].split(_USERS):
            rows = model["items"].expand(len(some), -1, -1)
            blocks.append(mlp(_layers(model, len(some)), "mlp", rows, some))
        return torch.cat(blocks)


def _layers(p: Params, copies: int) -> Params:
    """The MLP's layers as `mlp` wants them: once for each of the stacked inputs."""
    return {k: v.expand(copies, *v.shape) for k, v in p.items() if k.startswith("mlp.") and "/" not in k}
