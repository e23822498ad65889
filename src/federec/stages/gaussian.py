"""Gaussian noise on what a device sends.

    sent = value + N(0, scale^2)              for every value of every row and layer that a device sends

Which rows are sent is not hidden by it; behind `dense` the noise lies on all rows. After `clip`, scale / norm is the
noise multiplier of one device's update.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveFloat

from federec import streams
from federec.cohort.update import Update
from federec.stages.base import Promise, Stage
from federec.stages.noise import drawn, gaussian
from federec.stages.randomness import Randomness


class Gaussian(Stage):
    """Add normal noise to every value that is sent.

    >>> noisy = fr.train("fedmf", data, rounds=1, channel=[fr.Clip(norm=1.0), fr.Gaussian(scale=0.1)])
    """

    name: ClassVar[str] = "gaussian"

    scale: PositiveFloat = 0.1
    """Standard deviation of the noise."""

    def device(self, update: Update, random: Randomness) -> Update:
        noise = drawn(update, random, streams.GAUSSIAN, gaussian)
        return update.with_values({n: value.add(noise[n], alpha=self.scale) for n, value in update.values().items()})

    def promise(self, known: Promise) -> Promise:
        return known._replace(noise="gaussian", scale=self.scale)
