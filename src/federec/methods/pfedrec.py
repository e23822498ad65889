"""PFedRec - Dual Personalization on Federated Recommendation (Zhang et al., IJCAI 2023).

    r_ij = sigma(s_i(v_ij))          s_i: private score layer;  v_ij: tuned on the device from the shared row v_j

Each round a device takes the shared rows and, for every batch,
    (1)  s_i  <- s_i  - eta  d loss / d s_i
    (2)  v_ij <- v_ij - eta' d loss / d v_ij      with the new s_i
and sends the change of its rows; the server adds their mean. A device ranks with its own tuned rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import NonNegativeFloat, PositiveInt

from federec.cohort.layers import Param, Params, hidden, item_rows, mlp, mlp_params
from federec.methods.base import DeviceMethod, View
from federec.methods.forms import Form, LinearScore

if TYPE_CHECKING:
    from torch import Tensor

    from federec.cohort.cohort import Step


class PFedRec(DeviceMethod):
    """Dual personalisation: a private score function and privately tuned item rows.

    >>> fr.train(fr.PFedRec(dim=8), data, rounds=1).method.view
    'own'
    """

    name: ClassVar[str] = "pfedrec"
    paper: ClassVar[str] = "Zhang et al., Dual Personalization on Federated Recommendation, IJCAI 2023"
    view: ClassVar[View] = "own"

    dim: PositiveInt = 32
    """Width of an item row."""
    hidden: tuple[PositiveInt, ...] = ()
    """Widths of hidden layers in the score function; none = one linear layer."""
    lr: NonNegativeFloat = 0.1
    """Step of the private score layer (eta)."""
    item_lr_factor: NonNegativeFloat = 80.0
    """Item step = lr * items * factor (eta'): large, because the server divides by the number of devices."""

    def shared(self) -> dict[str, Param]:
        return {"items": item_rows(self.dim)}

    def private(self) -> dict[str, Param]:
        return mlp_params("score", (self.dim, *self.hidden, 1))

    def score(self, p: Params) -> Tensor:
        return mlp(p, "score", p["items"])

    def features(self, p: Params) -> Tensor:
        return hidden(p, "score", p["items"], len(self.hidden))

    def item_rate(self, n_items: int) -> float:
        """eta'."""
        return self.lr * n_items * self.item_lr_factor

    def fused_form(self, n_items: int) -> Form | None:
        names = ("items", "score.0.weight", "score.0.bias")
        return None if self.hidden else LinearScore(*names, self.lr, self.item_rate(n_items), alternate=True)

    def step(self, step: Step) -> None:
        score = [name for name in step.cohort.params if name.startswith("score.")]
        self.descend(step, dict.fromkeys(score, self.lr))
        self.descend(step, {"items": self.item_rate(step.n_items)})
