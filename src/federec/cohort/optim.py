"""Optimisers for stacked devices. A step gets only the slices of the active devices, so that a device which has
finished its batches does not change, nor do its moments."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from federec.cohort.layers import Params


def sgd_(value: Tensor, gradient: Tensor, lr: float | Tensor) -> None:
    """value -= lr * gradient, in place."""
    value.sub_(gradient * lr)


@dataclass(frozen=True)
class Adam:
    """Adam's constants, with torch's defaults."""

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


class WholeAdam:
    """Adam on all parameters of a model at once, in place: `NAME`, `NAME/m`, `NAME/v`, and `NAME/t` when it is closed.
    One pass over all of them, and nothing waits for a GPU."""

    def __init__(self, model: Params, lr: float) -> None:
        self.model, self.lr, self.adam = model, lr, Adam()
        self.names = [name for name in model if f"{name}/t" in model]
        self.count = model[f"{self.names[0]}/t"][0].clone()  # of all rows of all parameters
        self._parts = [[model[name + part] for name in self.names] for part in ("", "/m", "/v")]

    def step(self, gradients: Params) -> None:
        """One step; every parameter has a gradient."""
        self.count += 1
        (value, m, v), found = self._parts, [gradients[name] for name in self.names]
        _fused(value, found, m, v, [self.count] * len(found), self.lr, self.adam)

    def close(self) -> None:
        """Write the number of steps into the model."""
        for name in self.names:
            self.model[f"{name}/t"].fill_(self.count)


def server_moments(shared: Params) -> Params:
    """Fresh moments for a server that steps its parameters by Adam: `NAME/m`, `NAME/v`, `NAME/t`."""
    moments = {name: Adam.moments(value[None]) for name, value in shared.items()}
    return {f"{name}/{part}": value for name, parts in moments.items() for part, value in parts.items()}


def server_adam(
    shared: Params, gradients: Params, memory: Params, lr: float, adam: Adam | None = None, decay: float = 0.0
) -> Params:
    """New parameters after one step of Adam on those that have a gradient; moments change in place. With `decay` the
    parameters first shrink by lr * decay (AdamW)."""
    if not gradients:
        return dict(shared)
    adam = adam or Adam()
    counts = [memory[f"{name}/t"] for name in gradients]
    m, v = ([memory[f"{name}/{part}"][0] for name in gradients] for part in "mv")
    new = [shared[name] * (1 - lr * decay) for name in gradients]
    torch._foreach_add_(counts, 1.0)
    _fused(new, [gradient.contiguous() for gradient in gradients.values()], m, v, counts, lr, adam)
    return {**shared, **dict(zip(gradients, new, strict=True))}


def _fused(
    value: list[Tensor], gradients: list[Tensor], m: list[Tensor], v: list[Tensor], counts: list[Tensor], lr: float,
    adam: Adam,
) -> None:  # fmt: skip
    """A step in place, in one pass over all values; nothing waits for a GPU. Counts are those after the step."""
    torch._fused_adam_(
        value,
        gradients,
        m,
        v,
        [],
        counts,
        lr=lr,
        beta1=adam.beta1,
        beta2=adam.beta2,
        eps=adam.eps,
        weight_decay=0.0,
        amsgrad=False,
        maximize=False,
    )
