"""Noise as a pure function of (seed, round, user, draw), for values that leave a device."""

from __future__ import annotations

import math
from collections.abc import Container
from functools import cache

import torch
from torch import Tensor

from federec import streams
from federec.cohort.layers import Params
from federec.cohort.rows import Rows

_HALF = 1 << 15


@cache
def quantiles() -> Tensor:
    """The standard Laplace distribution at the middles of 2^16 equal shares of probability."""
    share = (torch.arange(2 * _HALF, dtype=torch.float64) + 0.5) / (2 * _HALF)
    return torch.where(share < 0.5, (2 * share).log(), -(2 - 2 * share).log()).float()


def laplace(key: Tensor, first: int, row: Tensor, width: int) -> Tensor:
    """[R, width] of standard Laplace noise for rows numbered `row` of the streams `key` [R], from the draw `first` on.
    16 random bits a value: 65,536 levels, the largest 11.1."""
    words = -(-width // 4)
    draw = first + row[:, None] * words + torch.arange(words, device=key.device)
    levels = streams.bits(key[:, None], draw).contiguous().view(torch.int16)[:, :width].int() + _HALF
    return quantiles().to(key.device).index_select(0, levels.flatten()).view(levels.shape)


def with_laplace(
    sent: Params,
    tables: Container[str],
    rows: Rows,
    key: Tensor,
    scale: float,
    clip: float = math.inf,
    first: int = streams.NOISE,
) -> Params:
    """Each value clipped to +-clip, plus Laplace noise from the draw `first` on. `tables` names the item tables among
    what is sent: their noise is numbered by item, so what else a device or its cohort holds does not matter."""
    noisy = {}
    for place, (name, value) in enumerate(sent.items()):
        whose, row = (key[rows.owner], rows.ids) if name in tables else (key, torch.zeros_like(key))
        noise = laplace(whose, first + (place << 36), row, value[0].numel())
        noisy[name] = value.clamp(-clip, clip).add_(noise.view_as(value), alpha=scale)
    return noisy
