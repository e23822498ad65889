"""Optimisers for stacked devices. A step is given the active devices' slices only, so that a device which has
finished its batches is left untouched, moments and all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def sgd_(value: Tensor, gradient: Tensor, lr: float | Tensor) -> None:
    """value -= lr * gradient, in place."""
    value.sub_(gradient * lr)


@dataclass(frozen=True)
class Adam:
    """Adam's constants; torch's defaults."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    @staticmethod
    def moments(value: Tensor) -> dict[str, Tensor]:
        """Fresh moments for devices stacked along the first dimension; `t` counts each device's own steps."""
        return {"m": torch.zeros_like(value), "v": torch.zeros_like(value), "t": value.new_zeros(len(value))}

    def step_(self, value: Tensor, gradient: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: float | Tensor) -> None:
        """One step in place on value and moments, each device at its own step count t."""
        t += 1
        m.mul_(self.beta1).add_(gradient, alpha=1 - self.beta1)
        v.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        steps = t.view(-1, *[1] * (value.dim() - 1))
        unbiased_m = m / (1 - self.beta1**steps)
        unbiased_v = v / (1 - self.beta2**steps)
        value.sub_(lr * unbiased_m / (unbiased_v.sqrt() + self.eps))
