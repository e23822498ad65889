"""Recency: a device learns more from what it touched lately.

    loss_i = sum_s w_s BCE_s / n,      w_s = c_i (2^(-age/h) + least) for a positive, 1 for a negative

age is how many newer items the device has, h the half-life in items; c_i makes the weights of a device's positives 1 on
average. Only the device knows the order of its history: nothing more is sent than without it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pydantic import PositiveFloat

from federec.methods.forms import AdditiveScore, Emphasis, Form, GraphScore, LinearScore, NeuralScore, SampledProducts
from federec.plugins.base import Plugin

if TYPE_CHECKING:
    from federec.cohort.cohort import Cohort


class Recency(Plugin):
    """Weight a device's positives by how new they are.

    >>> (fr.FedMF() | fr.Recency(half_life=20)).half_life
    20.0
    """

    plugin: ClassVar[str] = "recency"

    half_life: PositiveFloat = 60.0
    """Newer items after which a positive weighs half as much."""
    least: PositiveFloat = 0.05
    """Added to every weight: what the oldest positives keep."""

    def fuse(self, form: Form) -> Form | None:
        if isinstance(form, SampledProducts):  # whose losses are torch's
            return form
        emphasis = Emphasis(self.half_life, self.least)
        if isinstance(form, LinearScore | AdditiveScore | NeuralScore) and not form.mixing:
            return replace(form, emphasis=emphasis)
        return replace(form, emphasis=emphasis) if isinstance(form, GraphScore) else None

    def fit(self, cohort: Cohort) -> None:
        history = cohort.history
        assert history is not None
        weight = (0.5 ** (history.age / self.half_life) + self.least) * history.real
        weight *= (history.counts / weight.sum(1))[:, None]
        rows = cohort.own_rows()[history.real]  # no device draws its own positives as negatives
        cohort.emphasis = weight.new_ones(len(cohort.rows)).index_put_((rows,), weight[history.real])
        super().fit(cohort)
