"""Trimmed mean - Byzantine-Robust Distributed Learning (Yin et al., ICML 2018), item by item.

Of each value of a row, the largest and the smallest are left out, a fraction of the devices that touched the row on
either side; the mean of the others is what moves the row (see `gathered` for its scale).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from federec.aggregators.base import AggregatorSettings
from federec.aggregators.gathered import Gathered, Updates, sorted_values


class TrimmedMeanSettings(AggregatorSettings):
    """What can be set."""

    aggregator: ClassVar[str] = "trimmed-mean"

    fraction: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    """Fraction of the devices that is left out on either side."""


@dataclass
class TrimmedMean(Gathered):
    """The mean without the largest and the smallest values."""

    name: ClassVar[str] = "trimmed-mean"
    options: ClassVar[type[AggregatorSettings] | None] = TrimmedMeanSettings

    def combined(self, sent: Updates) -> tuple[Tensor, Tensor]:
        assert isinstance(self.settings, TrimmedMeanSettings)
        return trimmed(sent, self.settings.fraction)


def trimmed(sent: Updates, fraction: float) -> tuple[Tensor, Tensor]:
    """Rows and layers, each value a trimmed mean."""
    rows = sent.rows.new_zeros(sent.n_items, sent.rows.shape[1])
    for items, count, places in sent.blocks(sent.rows.shape[1]):
        values = sent.rows[places].transpose(1, 2).contiguous()  # [K, W, n]
        column = torch.arange(places.shape[1], device=places.device)
        values.masked_fill_((column >= count[:, None])[:, None], torch.inf)
        rows[items] = _between(sorted_values(values), count, fraction) * (count / sent.devices)[:, None]
    if not sent.layers.numel():
        return rows, sent.layers.new_zeros(sent.layers.shape[1])
    every = sent.owner.new_tensor([len(sent)])
    layers = _between(sorted_values(sent.layers.T.contiguous())[None], every, fraction)[0]
    return rows, layers * (len(sent) / sent.devices)


def _between(ranked: Tensor, count: Tensor, fraction: float) -> Tensor:
    """[K, W] means of sorted values [K, W, n], of which the first `count` [K] are real, without the outermost."""
    cut = (count * fraction).long().minimum((count - 1).div(2, rounding_mode="floor"))
    column = torch.arange(ranked.shape[2], device=ranked.device)
    inside = (column >= cut[:, None]) & (column < (count - cut)[:, None])
    return ranked.masked_fill(~inside[:, None], 0).sum(2) / (count - 2 * cut)[:, None]
