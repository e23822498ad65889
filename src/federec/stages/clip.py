"""Clip: bound what one user can change.

    sent = u min(1, norm / |u|)         u: all rows and layers of one user's update, as one vector

With `quantile` the norm follows the devices (Andrew et al., NeurIPS 2021), from round to round:

    b = +1 if |u| <= norm, else -1      one more value of every update, worth `SHARE` of the norm
    norm <- norm exp(-rate (share of +1 - quantile))      by the server, from the sum of b with the noise on it

Update and b together are never longer than the norm, so noise for the norm covers both: the quantile needs no budget of
its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat

from federec.cohort.layers import Param, Params
from federec.cohort.update import Update
from federec.lazy import torch
from federec.stages.base import KEPT, Promise, Settling, Stage
from federec.stages.randomness import Randomness

if TYPE_CHECKING:
    from torch import Tensor

SHARE = 0.2
"""Length of b in the norm; what is left for the update itself is sqrt(1 - SHARE^2), 98%."""
WITHIN = "@within"
NORM = KEPT + "norm"
"""Where the server keeps the norm."""


class Clip(Stage):
    """Scale each user's update down to a largest norm.

    >>> quiet = fr.train("fedmf", data, rounds=1, channel=[fr.Clip(norm=1.0)])
    """

    name: ClassVar[str] = "clip"
    quiet: ClassVar[tuple[str, ...]] = ("power", "quantile", "rate")
    per_user: ClassVar[bool] = True

    norm: PositiveFloat = 1.0
    """Largest norm of one user's update; with `quantile`, in the first round."""
    power: Literal[1, 2] = 2
    """Which norm: 1, the sum of absolute values, for Laplace noise; 2, the Euclidean one."""
    quantile: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Let the norm follow the devices, so that this share of updates is within it; not given: the norm stays."""
    rate: PositiveFloat = 0.5
    """How fast it follows."""

    def device(self, update: Update, random: Randomness) -> Update:
        owner = update.owner
        size = next(iter(update.values().values())).new_zeros(len(update))
        for rows in update.rows.values():
            size = size.index_add(0, owner, self._measured(rows))
        for layer in update.layers.values():
            size = size + self._measured(layer.flatten(1))
        if self.power == 2:
            size = size.sqrt()
        largest = self._largest
        factor = (largest / size).clamp(max=1.0)
        finite = size.isfinite()
        if not bool(finite.all()):  # nothing bounds what is no number: it is not sent
            update = update.with_values({name: value.nan_to_num(0, 0, 0) for name, value in update.values().items()})
            factor = factor.where(finite, 0.0)
        layers = {name: layer * factor.view(-1, *[1] * (layer.dim() - 1)) for name, layer in update.layers.items()}
        if self.quantile is not None:
            layers[WITHIN] = torch.where(size <= largest, 1.0, -1.0)[:, None] * SHARE * self.norm
        tables = {name: value * factor[owner, None] for name, value in update.rows.items()}
        return replace(update, rows=tables, layers=layers)

    @property
    def _largest(self) -> float:
        """What the norm leaves for the update itself."""
        if self.quantile is None:
            return self.norm
        return self.norm * (math.sqrt(1 - SHARE**2) if self.power == 2 else 1 - SHARE)

    def _measured(self, rows: Tensor) -> Tensor:
        return (rows.square() if self.power == 2 else rows.abs()).sum(1)

    def sends(self, known: Mapping[str, Param], n_items: int) -> Mapping[str, Param]:
        return known if self.quantile is None else {**known, WITHIN: Param((1,), "zeros")}

    def now(self, memory: Params) -> Clip:
        if self.quantile is None or NORM not in memory:
            return self
        return self.model_copy(update={"norm": float(memory[NORM])})

    def server(self, total: Params, settling: Settling) -> Params:
        if self.quantile is None or WITHIN not in total:
            return total
        total = dict(total)
        mean = float(total.pop(WITHIN)) / (SHARE * self.norm * max(1, settling.devices))
        within = min(1.0, max(0.0, (1 + mean) / 2))
        norm = self.norm * math.exp(-self.rate * (within - self.quantile))
        settling.memory[NORM] = torch.tensor([norm], dtype=torch.float64)
        return total

    def promise(self, known: Promise) -> Promise:
        return known._replace(clip=self.norm, power=self.power, follows=self.quantile is not None)
