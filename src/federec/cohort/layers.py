"""Parameters and score layers for stacked devices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from federec.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


ITEMS = -1
"""In a shape: the number of items."""
USERS = -2
"""In the shape of a shared parameter: the number of devices. The server keeps values for each of them."""

if TYPE_CHECKING:
    Params = dict[str, Tensor]
else:
    Params = dict  # a device may have no torch
"""Name -> tensor. Private parameters and layers have a leading device dimension; item rows come gathered for the
samples at hand, [C, B, dim]."""

SERVER = "@server"
"""Suffix of a name: the rows of an item table as the device received them this round, beside its own tuned ones."""


@dataclass(frozen=True)
class Param:
    """The description of a parameter: its shape and how it starts.

    >>> fr.Param((8,), "uniform", 0.1).sized(n_items=100)
    (8,)
    """

    shape: tuple[int, ...]
    """Shape of one device's copy; of one row, for an item table. `ITEMS` stands for the number of items, `USERS` for
    the number of devices."""
    init: Literal["normal", "uniform", "zeros"] = "normal"
    scale: float = 1.0
    """Standard deviation of `normal`, bound of `uniform`."""
    rows: bool = False
    """One row per item: a device fetches, trains and sends only the rows it touches."""
    adam: bool = False
    """Whether Adam trains it, with moments that are kept from round to round; otherwise SGD does."""

    def sized(self, n_items: int, devices: int = 0) -> tuple[int, ...]:
        """The shape for these numbers of items and devices."""
        return tuple({ITEMS: n_items, USERS: devices}.get(size, size) for size in self.shape)

    def start(self, n_items: int, generator: torch.Generator, devices: int = 0) -> Tensor:
        """Initial values: an item table, or the one copy that all devices begin with."""
        shape = (n_items,) * self.rows + self.sized(n_items, devices)
        if self.init == "normal":
            return torch.randn(shape, generator=generator) * self.scale
        if self.init == "uniform":
            return (torch.rand(shape, generator=generator) * 2 - 1) * self.scale
        return torch.zeros(shape)


def kept_bytes(params: dict[str, Param]) -> tuple[int, int]:
    """Bytes of a device's private parameters: a fixed part, and a part for each item that it touched."""
    whole = item = 0
    for param in params.values():
        size = math.prod(param.shape)
        if param.rows:
            item += 4 + 4 * size  # with the item's code
        else:
            whole += 4 * (3 * size + 1 if param.adam else size)  # with two moments and a count of steps
    return whole, item


def item_rows(dim: int) -> Param:
    """An item table whose rows are initialised from N(0, 1).

    >>> fr.item_rows(8).rows
    True
    """
    return Param((dim,), rows=True)


def mlp_params(name: str, widths: tuple[int, ...], xavier: bool = False) -> dict[str, Param]:
    """Weights and biases of layers widths[0] -> widths[1] -> ..., uniform in +-1/sqrt(inputs) as torch's Linear; with
    `xavier` weights uniform in +-sqrt(6 / (inputs + outputs)), biases 0.

    >>> list(fr.mlp_params("net", (8, 4, 1)))
    ['net.0.weight', 'net.0.bias', 'net.1.weight', 'net.1.bias']
    """
    params = {}
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        bound = math.sqrt(6 / (inputs + outputs)) if xavier else 1 / math.sqrt(inputs)
        params[f"{name}.{i}.weight"] = Param((inputs, outputs), "uniform", bound)
        params[f"{name}.{i}.bias"] = Param((outputs,), "zeros" if xavier else "uniform", bound)
    return params


def mlp(p: Params, name: str, x: Tensor, user: Tensor | None = None) -> Tensor:
    """Logits [C, B] of inputs x [C, B, width]: every device through its own layers, ReLU between them.

    >>> import torch
    >>> layers = {name: torch.ones(5, *param.shape) for name, param in fr.mlp_params("net", (8, 4, 1)).items()}
    >>> fr.mlp(layers, "net", torch.ones(5, 3, 8)).shape
    torch.Size([5, 3])
    """
    last = sum(key.startswith(f"{name}.") and key.endswith(".weight") for key in p) - 1
    x = hidden(p, name, x, last, user)
    return dot(p[f"{name}.{last}.weight"][:, :, 0], x) + p[f"{name}.{last}.bias"]


def hidden(p: Params, name: str, x: Tensor, depth: int, user: Tensor | None = None) -> Tensor:
    """Inputs x [C, B, width] through the first `depth` layers, ReLU after each. With user vectors [C, width'] the input
    is both side by side, [user, x]; the user's part of the first product is then computed once, not for every item."""
    for i in range(depth):
        weight, bias = p[f"{name}.{i}.weight"], p[f"{name}.{i}.bias"][:, None]
        if user is not None and i == 0:
            own, weight = weight.split([user.shape[1], x.shape[2]], 1)
            bias = torch.baddbmm(bias, user[:, None], own)
        x = torch.baddbmm(bias, x, weight).relu_()
    return x


def dot(user: Tensor, rows: Tensor) -> Tensor:
    """Inner products [C, B] of user vectors [C, dim] and item rows [C, B, dim].

    >>> import torch
    >>> fr.dot(torch.ones(2, 8), torch.ones(2, 3, 8)).tolist()
    [[8.0, 8.0, 8.0], [8.0, 8.0, 8.0]]
    """
    if rows.stride(0) == 0:  # all have the same rows
        return user @ rows[0].T
    return (rows * user[:, None]).sum(2)  # several times faster than a batched product with one column
