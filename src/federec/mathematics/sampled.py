"""Single rows of large products. For h_i [H] of each device and F [H, M, r] the rows of items j that device i needs are

    A_ij = h_i F_j + f_j         [r],  for pairs (i, j)

A device needs few of the M items. The functions here take all products and pick; `kernels.sampled` takes only those of
the pairs. Who plays a round says which of the two is used (`using`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Pulled(NamedTuple):
    """Gradients of a loss with respect to F, f and each h_i, of those with respect to A_ij."""

    weight: Tensor
    bias: Tensor
    hidden: Tensor


class Products(Protocol):
    """Products of pairs: device `owner[p]` and item `ids[p]`."""

    def rows(self, hidden: Tensor, weight: Tensor, bias: Tensor, owner: Tensor, ids: Tensor) -> Tensor:
        """A [P, r], for hidden [C, H], weight [H, M, r] and bias [M, r]."""

    def pull(self, hidden: Tensor, weight: Tensor, owner: Tensor, ids: Tensor, gradient: Tensor) -> Pulled:
        """What gradients [P, r] of these rows pull at; no pair occurs twice."""


class Whole:
    """All products, by torch."""

    def rows(self, hidden: Tensor, weight: Tensor, bias: Tensor, owner: Tensor, ids: Tensor) -> Tensor:
        every = torch.addmm(bias.flatten(), hidden, weight.flatten(1)).view(len(hidden), *bias.shape)
        return every[owner, ids]

    def pull(self, hidden: Tensor, weight: Tensor, owner: Tensor, ids: Tensor, gradient: Tensor) -> Pulled:
        every = gradient.new_zeros(len(hidden), *weight.shape[1:]).index_put_((owner, ids), gradient)
        flat = every.flatten(1)
        return Pulled((hidden.T @ flat).view_as(weight), every.sum(0), flat @ weight.flatten(1).T)


_taken: ContextVar[Products] = ContextVar("products", default=Whole())  # noqa: B039 - it has no state


def products() -> Products:
    """What takes products here."""
    return _taken.get()


@contextmanager
def using(taken: Products) -> Iterator[None]:
    """Products are taken by this in the context."""
    before = _taken.set(taken)
    try:
        yield
    finally:
        _taken.reset(before)
