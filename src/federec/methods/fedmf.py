"""FedMF - Secure Federated Matrix Factorization (Chai et al., IEEE Intelligent Systems 2021), for implicit feedback.

    r_ij = sigma(p_i . v_j)          p_i: private user vector;  v_j: shared item row

For every batch a device steps p_i and its rows together; it sends the change of its rows and the server adds
their mean. (The original encrypts the rows' gradients; here that is the channel's business.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import NonNegativeFloat, PositiveInt

from federec.cohort.layers import Param, Params, dot, item_rows
from federec.methods.base import DeviceMethod
from federec.methods.forms import Form, LinearScore

if TYPE_CHECKING:
    from torch import Tensor

    from federec.cohort.cohort import Step


class FedMF(DeviceMethod):
    """Matrix factorisation: a private user vector, shared item rows.

    >>> fr.FedMF(dim=16)
    FedMF(batch=256, negatives=4, epochs=1, dim=16, lr=0.1, item_lr_factor=80.0)
    """

    name: ClassVar[str] = "fedmf"
    paper: ClassVar[str] = "Chai et al., Secure Federated Matrix Factorization, IEEE Intelligent Systems 2021"

    dim: PositiveInt = 32
    """Width of user vectors and item rows."""
    lr: NonNegativeFloat = 0.1
    """Step of the private user vector."""
    item_lr_factor: NonNegativeFloat = 80.0
    """Item step = lr * items * factor: large, because the server divides by the number of devices."""

    def shared(self) -> dict[str, Param]:
        return {"items": item_rows(self.dim)}

    def private(self) -> dict[str, Param]:
        return {"user": Param((self.dim,), "uniform", self.dim**-0.5)}

    def score(self, p: Params) -> Tensor:
        return dot(p["user"], p["items"])

    def item_rate(self, n_items: int) -> float:
        """Step of the item rows."""
        return self.lr * n_items * self.item_lr_factor

    def fused_form(self, n_items: int) -> Form | None:
        return LinearScore("items", "user", None, self.lr, self.item_rate(n_items), alternate=False)

    def step(self, step: Step) -> None:
        self.descend(step, {"user": self.lr, "items": self.item_rate(step.n_items)})
