"""Local noise on what a device sends (PFedRec, section 6.6 and Table 4).

    sent = value + Laplace(0, laplace)         for every value of every row and layer that a device sends

The noise is drawn on the device, from its own stream of the round, after it has learned and on its way out: the device
goes on, and ranks, with what it learned. It lies on the rows that the device sends, those of its positives and drawn
negatives; which rows these are is not hidden, and values are not clipped, so `laplace` alone is no privacy budget.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from federec import streams
from federec.cohort.cohort import Cohort
from federec.cohort.layers import Params
from federec.methods.forms import Form
from federec.plugins.base import Plugin


class LDP(Plugin):
    """Laplace noise on every value a device sends."""

    plugin: ClassVar[str] = "ldp"
    changes_steps: ClassVar[bool] = False

    laplace: NonNegativeFloat = 0.5
    """Scale of the noise; its standard deviation is sqrt(2) times that."""

    def fused_form(self, n_items: int) -> Form | None:
        return None if self.laplace else super(Plugin, self).fused_form(n_items)

    def message(self, cohort: Cohort, shared: Params) -> Params:
        message = super().message(cohort, shared)
        if not self.laplace:
            return message
        noisy, first = {}, streams.LAPLACE
        for name, param in self.sends().items():
            if name not in message:
                continue
            value = message[name].flatten(1)
            width, row = value.shape[1], torch.zeros_like(cohort.users)
            key = cohort.samples.key
            if param.rows:  # numbered by item: what else the device or its cohort holds does not matter
                key, row = key[cohort.rows.owner], cohort.rows.ids
            draw = first + row[:, None] * width + torch.arange(width, device=row.device)
            noise = self.laplace * standard_laplace(streams.bits(key[:, None], draw))
            noisy[name] = (value + noise).view_as(message[name])
            first += width * (cohort.n_items if param.rows else 1)
        return noisy


def standard_laplace(random: Tensor) -> Tensor:
    """Laplace(0, 1) from 64 random bits: an exponential number from the upper, its sign from the lowest."""
    return -torch.log1p(-streams.unit(random).float()) * (1.0 - 2.0 * (random & 1))
