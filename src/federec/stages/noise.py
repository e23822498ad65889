"""Noise for values that leave a device.

Draws are numbered by parameter and, in item tables, by item: what else a device or its cohort holds does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from federec import streams
from federec.cohort.layers import Params
from federec.cohort.update import Update
from federec.lazy import torch
from federec.stages.randomness import Randomness

if TYPE_CHECKING:
    from torch import Tensor

_HALF = 1 << 15
_FINE = 1 << 53

Draw: TypeAlias = "Callable[[Randomness, Tensor, int, Tensor, int], Tensor]"
"""[R, width] random values for rows with these numbers, of these devices of the cohort, from a first draw on."""


@cache
def quantiles() -> Tensor:
    """The standard Laplace distribution at the middles of 2^16 equal shares of probability."""
    share = (torch.arange(2 * _HALF, dtype=torch.float64) + 0.5) / (2 * _HALF)
    return torch.where(share < 0.5, (2 * share).log(), -(2 - 2 * share).log()).float()


def laplace(random: Randomness, owner: Tensor, first: int, row: Tensor, width: int) -> Tensor:
    """Standard Laplace noise, by 16 random bits a value: 65,536 levels, the largest 11.1."""
    words = -(-width // 4)
    draw = first + row[:, None] * words + torch.arange(words, device=row.device)
    levels = random.bits(owner, draw).contiguous().view(torch.int16)[:, :width].int().add_(_HALF)
    return quantiles().to(row.device).index_select(0, levels.flatten()).view(levels.shape)


def gaussian(random: Randomness, owner: Tensor, first: int, row: Tensor, width: int) -> Tensor:
    """Standard normal noise (Box and Muller), by 53 random bits each for radius and angle. The largest is 8.6: larger
    ones would come once in 10^17 values, so no delta notices that they are missing."""
    radius, angle = (uniform_bits(random, owner, first, row, 2 * width) >> 11 & _FINE - 1).double().split(width, 1)
    radius = (-2 * ((radius + 1) / _FINE).log()).sqrt_()
    found: Tensor = (radius * torch.cos(angle * (2 * math.pi / _FINE))).float()
    return found


def uniform(random: Randomness, owner: Tensor, first: int, row: Tensor, width: int) -> Tensor:
    """Uniform in [0, 1)."""
    found: Tensor = streams.unit(uniform_bits(random, owner, first, row, width)).float()
    return found


def uniform_bits(random: Randomness, owner: Tensor, first: int, row: Tensor, width: int) -> Tensor:
    """64 random bits a value."""
    draw = first + row[:, None] * width + torch.arange(width, device=row.device)
    return random.bits(owner, draw)


def drawn(update: Update, random: Randomness, first: int, draw: Draw) -> Params:
    """A random value for every value of an update, by parameter."""
    device, found = torch.arange(len(update), device=update.ids.device), {}
    for place, (name, value) in enumerate(update.values().items()):
        owner, row = (update.owner, update.ids) if name in update.rows else (device, torch.zeros_like(device))
        width = value[0].numel() if len(value) else 0
        found[name] = draw(random, owner, first + (place << 36), row, width).view_as(value)
    return found
