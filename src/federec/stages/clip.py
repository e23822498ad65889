"""Clip: bound what one user can change.

sent = u min(1, norm / |u|)         u: all rows and layers of one user's update, as one vector
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import PositiveFloat

from federec.cohort.update import Update
from federec.stages.base import Promise, Stage
from federec.stages.randomness import Randomness


class Clip(Stage):
    """Scale each user's update down to a largest norm.

    >>> quiet = fr.train("fedmf", data, rounds=1, channel=[fr.Clip(norm=1.0)])
    """

    name: ClassVar[str] = "clip"
    per_user: ClassVar[bool] = True

    norm: PositiveFloat = 1.0
    """Largest norm of one user's update."""

    def device(self, update: Update, random: Randomness) -> Update:
        owner = update.owner
        square = next(iter(update.values().values())).new_zeros(len(update))
        for rows in update.rows.values():
            square = square.index_add(0, owner, rows.square().sum(1))
        for layer in update.layers.values():
            square = square + layer.flatten(1).square().sum(1)
        factor = (self.norm / square.sqrt()).clamp(max=1.0)
        return replace(
            update,
            rows={name: rows * factor[owner, None] for name, rows in update.rows.items()},
            layers={name: layer * factor.view(-1, *[1] * (layer.dim() - 1)) for name, layer in update.layers.items()},
        )

    def promise(self, known: Promise) -> Promise:
        return known._replace(clip=self.norm)
