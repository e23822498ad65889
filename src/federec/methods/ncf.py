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

from federec.cohort.layers import Param, Params, mlp_params
from federec.data.split import Split
from federec.methods.pooled import PooledMethod

_PAIRS, _GPU_PAIRS = 1 << 14, 1 << 20  # scored at a time


class NCF(PooledMethod):
    """Centralised reference: FedNCF's model on pooled data.

    >>> fr.NCF(dim=8).dim
    8
    """

    name: ClassVar[str] = "ncf"
    paper: ClassVar[str] = "He et al., Neural Collaborative Filtering, WWW 2017"
    recorded: ClassVar[bool] = True
    pairwise: ClassVar[bool] = True

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
        own, theirs = p["mlp.0.weight"].split(self.dim)
        first = embedding(users, p["users"]) @ own + embedding(items, p["items"]) @ theirs + p["mlp.0.bias"]
        return self.above(p, first.relu()[None])[0]

    def gradient(self, p: Params, *batch: Tensor) -> Params:
        users, items, labels = batch
        inputs = embedding(users, p["users"]), embedding(items, p["items"])
        weights, biases = ([p[f"mlp.{i}.{part}"] for i in range(self.depth)] for part in ("weight", "bias"))
        first = weights[0].split(self.dim)  # of the user's part and of the item's
        x = [torch.addmm(torch.addmm(biases[0], inputs[0], first[0]), inputs[1], first[1]).relu_()]
        for weight, bias in zip(weights[1:-1], biases[1:-1], strict=True):
            x.append(torch.addmm(bias, x[-1], weight).relu_())
        logits = torch.addmm(biases[-1], x[-1], weights[-1])
        error = (logits.sigmoid_() - labels[:, None]).div_(len(labels))  # with respect to what a layer gives
        found: Params = {}
        for i in reversed(range(1, self.depth)):
            found |= {f"mlp.{i}.weight": x[i - 1].T @ error, f"mlp.{i}.bias": error.sum(0)}
            error = torch.ops.aten.threshold_backward(error @ weights[i].T, x[i - 1], 0)
        found |= {"mlp.0.weight": torch.cat([part.T @ error for part in inputs]), "mlp.0.bias": error.sum(0)}
        for name, rows, weight in (("users", users, first[0]), ("items", items, first[1])):
            found[name] = torch.zeros_like(p[name]).index_add_(0, rows, error @ weight.T)
        return found

    def scores(self, model: Params, split: Split, users: Tensor) -> Tensor:
        own, theirs = model["mlp.0.weight"].split(self.dim)
        mine, theirs = torch.addmm(model["mlp.0.bias"], model["users"][users], own), model["items"] @ theirs
        size = max(1, (_GPU_PAIRS if users.is_cuda else _PAIRS) // len(theirs))
        return torch.cat([self.above(model, (some[:, None] + theirs).relu_()) for some in mine.split(size)])

    def above(self, p: Params, x: Tensor) -> Tensor:
        """Logits [C, K] from what the first layer gives, [C, K, width]."""
        flat = x.flatten(0, 1)
        for i in range(1, self.depth - 1):
            flat = torch.addmm(p[f"mlp.{i}.bias"], flat, p[f"mlp.{i}.weight"]).relu_()
        last = self.depth - 1
        return torch.addmm(p[f"mlp.{last}.bias"], flat, p[f"mlp.{last}.weight"]).view(x.shape[:2])

    @property
    def depth(self) -> int:
        """Layers of the MLP."""
        return len(self.hidden) + 1
