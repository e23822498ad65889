"""NewPlugin: weight decay on any method. Change it into yours.

loss_i + decay / 2 |w_i|^2          w_i: the private parameters of device i, but for private item tables
"""

from __future__ import annotations

from pydantic import NonNegativeFloat
from torch import Tensor

import federec as fr


class NewPlugin(fr.Plugin):
    """Weight decay on the private parameters of the method below."""

    # Settings: each has a type, a default, and a docstring. The method below has its own.
    decay: NonNegativeFloat = 0.01
    """How strongly private parameters are pulled to zero."""

    def loss(self, p: dict[str, Tensor], step: fr.Step) -> Tensor:  # [C]: the loss of each device of the cohort
        private = [p[name] for name, param in self.private().items() if not param.rows]
        squares = [value.flatten(1).square().sum(1) for value in private]
        return super().loss(p, step) + self.decay / 2 * sum(squares, step.weight.new_zeros(()))
