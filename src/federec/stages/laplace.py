"""Laplace noise on what a device sends (PFedRec, section 6.6 and Table 4).

    sent = value + Laplace(0, scale)          for every value of every row and layer that a device sends

The noise is drawn on the device, after it has learned and on its way out: the device continues, and ranks, with what it
learned. It lies on the rows that the device sends; which rows these are is not hidden. Without a bound on what one user
can change (`clip`) a scale is no privacy budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import PositiveFloat

from federec import streams
from federec.cohort.update import Update
from federec.stages.base import Promise, Stage
from federec.stages.noise import drawn, laplace
from federec.stages.randomness import Randomness


class Laplace(Stage):
    """Add Laplace noise to every value that is sent.

    >>> noisy = fr.train("fedmf", data, rounds=1, channel=[fr.Laplace(scale=0.1)])
    """

    name: ClassVar[str] = "laplace"

    scale: PositiveFloat = 0.5
    """Scale of the noise; its standard deviation is sqrt(2) times that."""

    def device(self, update: Update, random: Randomness) -> Update:
        noise = drawn(update, random, streams.LAPLACE, laplace)
        return update.with_values({n: value.add(noise[n], alpha=self.scale) for n, value in update.values().items()})

    def promise(self, known: Promise) -> Promise:
        return known._replace(noise="laplace", scale=self.scale)

    def in_kernel(self) -> Mapping[str, float]:
        return {"laplace": self.scale}
