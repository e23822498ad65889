"""Local noise on what a device sends (PFedRec, section 6.6 and Table 4).

    sent = value + Laplace(0, laplace)         for every value of every row and layer that a device sends

The noise is drawn on the device, from its own stream of the round, after it has learned and on its way out: the device
goes on, and ranks, with what it learned. It lies on the rows that the device sends, those of its positives and drawn
negatives; which rows these are is not hidden, and values are not clipped, so `laplace` alone is no privacy budget.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import NonNegativeFloat

from federec import streams
from federec.cohort.cohort import Cohort
from federec.cohort.layers import Params
from federec.methods.forms import Form, LinearScore
from federec.plugins.base import Plugin
from federec.stages.noise import with_laplace


class LDP(Plugin):
    """Laplace noise on every value a device sends."""

    plugin: ClassVar[str] = "ldp"
    changes_steps: ClassVar[bool] = False

    laplace: NonNegativeFloat = 0.5
    """Scale of the noise; its standard deviation is sqrt(2) times that."""

    def fuse(self, form: Form) -> Form | None:
        if not self.laplace:
            return form
        return replace(form, laplace=self.laplace) if isinstance(form, LinearScore) else None

    def message(self, cohort: Cohort, shared: Params) -> Params:
        message, sends = super().message(cohort, shared), self.sends()
        if not self.laplace:
            return message
        known = {name: message[name] for name in sends if name in message}
        tables = [name for name, param in sends.items() if param.rows]
        return with_laplace(known, tables, cohort.rows, cohort.samples.key, self.laplace, first=streams.LAPLACE)
