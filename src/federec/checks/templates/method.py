"""NewMethod: matrix factorisation on the devices. Change it into yours.

    r_ij = sigma(p_i . v_j)          p_i: the private vector of user i;  v_j: the shared row of item j

For every batch a device moves p_i and the rows of its items down the gradient of the cross-entropy. It sends the change
of its rows; the server adds the mean over all devices.
"""

from __future__ import annotations

from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

import federec as fr


class NewMethod(fr.DeviceMethod):
    """Matrix factorisation: a private user vector, shared item rows."""

    # Settings: each has a type, a default, and a docstring. `--set dim=16` or NewMethod(dim=16) changes one.
    dim: PositiveInt = 32
    """Width of user vectors and item rows."""
    lr: NonNegativeFloat = 0.1
    """Step of the private user vector."""
    item_lr_factor: NonNegativeFloat = 80.0
    """Item step = lr * items * factor: large, because the server divides by the number of devices."""

    def shared(self) -> dict[str, fr.Param]:  # what the server aggregates
        return {"items": fr.item_rows(self.dim)}

    def private(self) -> dict[str, fr.Param]:  # what never leaves the device
        return {"user": fr.Param((self.dim,), "uniform", self.dim**-0.5)}

    def score(self, p: dict[str, Tensor]) -> Tensor:  # user [C, dim] and items [C, B, dim] -> logits [C, B]
        return fr.dot(p["user"], p["items"])

    def step(self, step: fr.Step) -> None:  # one batch, on every device of the cohort at once
        self.descend(step, {"user": self.lr, "items": self.lr * step.n_items * self.item_lr_factor})
