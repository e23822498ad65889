"""FedNCF - Federated Neural Collaborative Filtering (Perifanis and Efraimidis, Knowledge-Based Systems 2022).

    r_ij = sigma(MLP([p_i, v_j]))        p_i: private user vector;  v_j and the MLP: shared

The user vector and the item row side by side are the input, 32 + 32 = 64 wide; then layers of 32, 16 and 8 with ReLU
and one logit: the list "64, 32, 16, 8 -> 1" of the comparisons counts the input, as NCF's lists of layers do.
For every batch a device steps p_i, its rows and its copy of the MLP together; it sends the changes of rows and MLP and
the server adds their means.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from federec.cohort.cohort import Step
from federec.cohort.layers import Param, Params, hidden, item_rows, mlp, mlp_params
from federec.methods.base import DeviceMethod
from federec.methods.forms import Form, NeuralScore


class FedNCF(DeviceMethod):
    """Neural collaborative filtering: a private user vector, shared item rows and a shared MLP.

    >>> fr.train(fr.FedNCF(dim=8), data, rounds=1).method.name
    'fedncf'
    """

    name: ClassVar[str] = "fedncf"
    paper: ClassVar[str] = "Perifanis and Efraimidis, Federated Neural Collaborative Filtering, KBS 2022"

    dim: PositiveInt = 32
    """Width of user vectors and item rows."""
    hidden: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (32, 16, 8)
    """Widths of the MLP's hidden layers; its input is 2 * dim wide."""
    lr: NonNegativeFloat = 0.5
    """Step of the MLP."""
    user_lr: NonNegativeFloat = 50.0
    """Step of the private user vector: large, because its gradient comes through all layers."""
    item_lr_factor: NonNegativeFloat = 32.0
    """Item step = lr * items * factor: large, because the server divides by the number of devices."""

    def shared(self) -> dict[str, Param]:
        return {"items": item_rows(self.dim), **mlp_params("mlp", (2 * self.dim, *self.hidden, 1))}

    def private(self) -> dict[str, Param]:
        return {"user": Param((self.dim,), "uniform", self.dim**-0.5)}

    def score(self, p: Params) -> Tensor:
        return mlp(p, "mlp", p["items"], p["user"])

    def features(self, p: Params) -> Tensor:
        return hidden(p, "mlp", p["items"], len(self.hidden), p["user"])

    def item_rate(self, n_items: int) -> float:
        return self.lr * n_items * self.item_lr_factor

    def fused_form(self, n_items: int) -> Form | None:
        layers = tuple(name for name, param in FedNCF.shared(self).items() if not param.rows)  # also with plug-ins
        rates, widest = (self.user_lr, self.item_rate(n_items), self.lr), max(self.dim, *self.hidden)
        return NeuralScore(("items",), ("user",), layers, *rates, widest=widest)

    def step(self, step: Step) -> None:
        layers = [name for name in step.cohort.params if name.startswith("mlp.")]
        rates = {"user": self.user_lr, "items": self.item_rate(step.n_items)}
        self.descend(step, rates | dict.fromkeys(layers, self.lr))
