"""FedRecon - Federated Reconstruction: Partially Local Federated Learning (Singhal et al., NeurIPS 2021).

    r_ij = sigma(p_i . v_j)          p_i: rebuilt by the device in every round, never sent;  v_j: shared item row

Each round a device splits its samples at random into a support and a query half and
    (1)  starts from p_i = 0 and steps it on the support half, rows frozen;
    (2)  steps its rows on the query half, p_i frozen,
and sends the change of its rows; the server adds their mean. What a device learned in earlier rounds does not matter:
it keeps its vector only to rank with it until it rebuilds the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import NonNegativeFloat, PositiveInt

from federec.cohort.layers import Param, Params, dot, item_rows
from federec.methods.base import DeviceMethod
from federec.methods.forms import Form, LinearScore

if TYPE_CHECKING:
    from torch import Tensor

    from federec.cohort.cohort import Cohort, Step


class FedRecon(DeviceMethod):
    """Matrix factorisation whose user vectors are rebuilt in every round on half of the local data.

    >>> fr.train(fr.FedRecon(dim=8), data, rounds=1).method.name
    'fedrecon'
    """

    name: ClassVar[str] = "fedrecon"
    paper: ClassVar[str] = "Singhal et al., Federated Reconstruction: Partially Local Federated Learning, NeurIPS 2021"

    dim: PositiveInt = 32
    """Width of user vectors and item rows."""
    lr: NonNegativeFloat = 1.0
    """Step of the user vector while it is rebuilt."""
    passes: PositiveInt = 20
    """Passes over the support half that rebuild the user vector."""
    item_lr_factor: NonNegativeFloat = 3.0
    """Item step = items * factor: large, because the server divides by the number of devices."""
    disjoint: bool = True
    """Rows learn only from the query half; otherwise from all of the device's samples."""

    def shared(self) -> dict[str, Param]:
        return {"items": item_rows(self.dim)}

    def private(self) -> dict[str, Param]:
        return {"user": Param((self.dim,), "zeros")}

    def score(self, p: Params) -> Tensor:
        return dot(p["user"], p["items"])

    def item_rate(self, n_items: int) -> float:
        """Step of the item rows."""
        return n_items * self.item_lr_factor

    def fused_form(self, n_items: int) -> Form | None:
        rates = self.lr, self.item_rate(n_items)
        return LinearScore("items", "user", None, *rates, alternate=False, passes=self.passes, disjoint=self.disjoint)

    def fit(self, cohort: Cohort) -> None:
        self.rebuild(cohort)
        for _ in range(self.epochs):
            for step in cohort.steps(self.batch, half=1 if self.disjoint else None):
                self.step(step)

    def rebuild(self, cohort: Cohort) -> None:
        """The user vector from nothing."""
        cohort.params["user"].zero_()
        support = list(cohort.steps(self.batch, half=0))  # frozen rows are gathered once for all passes
        for _ in range(self.passes):
            for step in support:
                self.descend(step, {"user": self.lr})

    def step(self, step: Step) -> None:
        self.descend(step, {"items": self.item_rate(step.n_items)})
