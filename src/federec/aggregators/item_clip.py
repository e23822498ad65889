"""Item clip: of each item's row, every device's change is bounded, then the mean is taken.

    result_j = 1/N sum_i x_ij min(1, norm_j / |x_ij|)    norm_j: given, or the median of |x_ij| over those who touched j

A norm bound on whole updates lets an attacker spend all of it on one row; this one does not. Layers are bounded as a
whole, in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import PositiveFloat
from torch import Tensor

from federec.aggregators.base import AggregatorSettings
from federec.aggregators.gathered import Gathered, Updates, median_of


class ItemClipSettings(AggregatorSettings):
    """What can be set."""

    aggregator: ClassVar[str] = "item-clip"

    norm: PositiveFloat | None = None
    """Largest norm of a device's change of a row; the median over the devices that touched the row if not given."""


@dataclass
class ItemClip(Gathered):
    """The mean of rows whose norms are bounded, item by item."""

    name: ClassVar[str] = "item-clip"
    options: ClassVar[type[AggregatorSettings] | None] = ItemClipSettings

    def combined(self, sent: Updates) -> tuple[Tensor, Tensor]:
        assert isinstance(self.settings, ItemClipSettings)
        rows, layers = clipped(sent, self.settings.norm)
        return sent.summed(rows) / sent.devices, layers.sum(0) / sent.devices


def clipped(sent: Updates, norm: float | None) -> tuple[Tensor, Tensor]:
    """The rows [R, W] and layers [D, L] of all devices, bounded."""
    norms = sent.rows.norm(dim=1)
    bound = norms.new_full((sent.n_items,), norm or torch.inf)
    for items, count, places in sent.blocks(1) if norm is None else ():
        bound[items] = median_of(norms[places], count)
    sizes = sent.layers.norm(dim=1)
    most = sizes.new_tensor(norm) if norm else sizes.quantile(0.5) if len(sizes) else sizes.new_zeros(())
    return sent.rows * _factor(norms, bound[sent.ids])[:, None], sent.layers * _factor(sizes, most)[:, None]


def _factor(norms: Tensor, bound: Tensor) -> Tensor:
    return torch.where(norms > bound, bound / norms, 1.0)
