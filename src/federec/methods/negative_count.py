"""Negative-count: a score that learns nothing.

    score_ij = - (how often device i has drawn item j as a training negative)

Under `paper` the held-out items are never drawn and rise to the top; under `clean` they sink like all others. The
gap between the two is the leak.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from federec.cohort.cohort import Cohort
from federec.cohort.layers import Param, Params
from federec.methods.base import DeviceMethod


class NegativeCount(DeviceMethod):
    """Control: ranks items by how seldom they were drawn as negatives; exposes the leak of `paper`.

    >>> leak = fr.train(fr.NegativeCount(), data, rounds=5, protocol="paper")
    >>> leak.test["sampled"]["hr@10"] > 2 * fr.train(fr.NegativeCount(), data, rounds=5).test["sampled"]["hr@10"]
    True
    """

    name: ClassVar[str] = "negative-count"
    paper: ClassVar[str] = "control"

    def private(self) -> dict[str, Param]:
        return {"drawn": Param((1,), "zeros", rows=True)}

    def score(self, p: Params) -> Tensor:
        return -p["drawn"].squeeze(2)

    def fit(self, cohort: Cohort) -> None:
        position = torch.arange(cohort.samples.items.shape[1], device=cohort.users.device)
        drawn = (position < cohort.samples.counts[:, None]) & (cohort.samples.labels == 0)
        slots = cohort.rows.slots[drawn]
        cohort.tables["drawn"].view(-1).scatter_add_(0, slots, torch.ones(len(slots), device=slots.device))
