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
        torch._fused_adam_(
            value,
            found,
            m,
            v,
            [],
            [self.count] * len(found),
            lr=self.lr,
            beta1=self.adam.beta1,
            beta2=self.adam.beta2,
            eps=self.adam.eps,
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
        )

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
    g, counts = [*gradients.values()], [memory[f"{name}/t"] for name in gradients]
    m, v = ([memory[f"{name}/{part}"][0] for name in gradients] for part in "mv")
    new = [shared[name] * (1 - lr * decay) for name in gradients]
    torch._foreach_add_(counts, 1.0)
    done = torch.cat(counts)
    first, second = torch.stack([1 - adam.beta1**done, 1 - adam.beta2**done]).tolist()
    if new[0].device.type == "cpu":
        # A few values of one parameter after the other: those at hand stay in cache through all operations.
        size = _BLOCK * torch.get_num_threads()
        for i in range(len(new)):
            for blocks in zip(*(part[i].reshape(-1).split(size) for part in (new, g, m, v)), strict=True):
                value, gradient, mean, square = ([block] for block in blocks)
                _server_adam_(value, gradient, mean, square, first[i : i + 1], second[i : i + 1], lr, adam)
    else:
        # All parameters in each operation: a network has many small ones, and a GPU takes as long to start as to
        # compute.
        _server_adam_(new, g, m, v, first, second, lr, adam)
    return {**shared, **dict(zip(gradients, new, strict=True))}


_BLOCK = 1 << 15
"""Values for a thread of a CPU at a time."""


def _server_adam_(
    values: list[Tensor],
    gradients: list[Tensor],
    m: list[Tensor],
    v: list[Tensor],
    first: list[float],
    second: list[float],
    lr: float,
    adam: Adam,
) -> None:
    """One step in place on values and moments, with what makes each moment unbiased."""
    torch._foreach_mul_(m, adam.beta1)
    torch._foreach_add_(m, gradients, alpha=1 - adam.beta1)
    torch._foreach_mul_(v, adam.beta2)
    torch._foreach_addcmul_(v, gradients, gradients, value=1 - adam.beta2)
    size = torch._foreach_sqrt(torch._foreach_div(v, second))
    torch._foreach_add_(size, adam.eps)
    step = torch._foreach_div(m, first)
    torch._foreach_mul_(step, lr)
    torch._foreach_div_(step, size)
    torch._foreach_sub_(values, step)
