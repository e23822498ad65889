"""Dual personalisation as a plug-in (PFedRec, Table 3).

The whole score function stays on the device, and item rows are tuned after it: for every batch
    (1)  score parameters step;   (2)  item rows step, with the new score parameters.
A device ranks with its own tuned rows. On FedMF this is PFedRec with a bias-free linear score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from federec.cohort.layers import Param
from federec.methods.base import View
from federec.methods.forms import AdditiveScore, Form, LinearScore, NeuralScore
from federec.plugins.base import Plugin

if TYPE_CHECKING:
    from torch import Tensor

    from federec.cohort.cohort import Step


class DualPer(Plugin):
    """Keep the score function private, tune the item rows after it, rank with the tuned rows.

    >>> (fr.FedMF() | fr.DualPer()).plugins
    ('dualper',)
    """

    plugin: ClassVar[str] = "dualper"
    view: ClassVar[View] = "own"

    def shared(self) -> dict[str, Param]:
        return {name: param for name, param in super().shared().items() if param.rows}

    def private(self) -> dict[str, Param]:
        layers = {name: param for name, param in super().shared().items() if not param.rows}
        return {**super().private(), **layers}

    def fuse(self, form: Form) -> Form | None:
        if isinstance(form, LinearScore):
            return replace(form, alternate=True)
        if isinstance(form, NeuralScore) and not form.mixing:
            return replace(form, dual=True)
        # No kernel takes steps of rows uphill after those of the score, or mixes rows for both.
        if isinstance(form, AdditiveScore) and not (form.mixing or form.rho or form.common_rho):
            return replace(form, alternate=True)
        return None

    def descend(self, step: Step, rates: Mapping[str, float | Tensor]) -> None:
        score = {name: rate for name, rate in rates.items() if name not in step.cohort.tables}
        rows = {name: rate for name, rate in rates.items() if name in step.cohort.tables}
        for part in (score, rows):
            if part:
                super().descend(step, part)
