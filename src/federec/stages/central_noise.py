"""Central noise: the server adds normal noise to the sum over the devices (DP-FedAvg, McMahan et al., ICLR 2018).

    total + N(0, (multiplier clip)^2)         for every value of every table and layer, touched or not

The server must be trusted to add it. What it releases from then on, the new shared parameters and all that is computed
from them, is differentially private for each user; `federec.privacy` adds up rounds.
"""

from __future__ import annotations

import math
from typing import ClassVar, Self

from pydantic import NonNegativeFloat, PrivateAttr

from federec import streams
from federec.cohort.layers import Params
from federec.lazy import torch
from federec.stages.base import Promise, Settling, Stage
from federec.stages.noise import gaussian

_SOME = 1 << 22  # values that are drawn at a time


class CentralNoise(Stage):
    """Have the server add normal noise to the sum, in proportion to the clipped norm.

    >>> private = fr.train("fedmf", data, rounds=1, channel=[fr.Clip(norm=1.0), fr.CentralNoise(multiplier=1.0)])
    >>> private.result["privacy"]["accountant"]
    'pld'
    """

    name: ClassVar[str] = "central-noise"
    quiet: ClassVar[tuple[str, ...]] = ("multiplier",)
    on_sums: ClassVar[bool] = True

    multiplier: NonNegativeFloat | None = None
    """Standard deviation of the noise / largest norm of one user's update. Not given: what the run's epsilon asks
    for."""

    _known: Promise = PrivateAttr(default=Promise())

    def bound(self, known: Promise) -> Self:
        made = self.model_copy()
        made._known = known
        return made

    def server(self, total: Params, settling: Settling) -> Params:
        if not self.multiplier:
            return total
        values = sum(value.numel() for value in total.values())
        assert self._known.clip is not None  # see `Link.of`
        deviation = self.multiplier * (self._known.clip + self._known.rounding * math.sqrt(values))
        noised = {}
        for place, (name, value) in enumerate(sorted(total.items())):
            first, width = streams.CENTRAL + (place << 36), value[0].numel()
            noised[name] = value.clone()
            for rows in torch.arange(len(value), device=value.device).split(max(1, _SOME // width)):
                noise = gaussian(settling.random, torch.zeros_like(rows), first, rows, width)
                noised[name][rows] += deviation * noise.view(len(rows), *value.shape[1:])
        return noised

    def promise(self, known: Promise) -> Promise:
        return known._replace(noise="central", multiplier=self.multiplier or 0.0)
