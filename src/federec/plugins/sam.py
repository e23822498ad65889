"""Sharpness-aware minimisation as a plug-in (FedRecGEL, Yu et al., WWW 2026): flat minima for what devices share and
for what each keeps.

    eps_G = rho_G g_G / |g_G|       G: the shared, the private parameters about to step; norm over the device's group
    G steps along its gradient at the values with G moved by eps_G; both groups start from the same gradient g

Which group a parameter belongs to is where the method declares it: a private item table is in the private group.
Without radii the plug-in computes nothing that the method does not compute without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pydantic import NonNegativeFloat

from federec.cohort.layers import Params
from federec.mathematics.sharpness import sharpness_aware
from federec.methods.forms import AdditiveScore, Form, LinearScore, NeuralScore, SampledProducts
from federec.plugins.base import Plugin

if TYPE_CHECKING:
    from federec.cohort.cohort import Step


class SAM(Plugin):
    """Step along gradients taken uphill: seeks flat minima of the shared and of the private parameters.

    >>> (fr.FedMF() | fr.SAM(rho_shared=0.05)).rho_shared
    0.05
    """

    plugin: ClassVar[str] = "sam"

    rho_shared: NonNegativeFloat = 0.02
    """How far the shared parameters are moved uphill; 0 = not at all."""
    rho_private: NonNegativeFloat = 0.02
    """How far the private parameters are moved uphill; 0 = not at all."""

    def fuse(self, form: Form) -> Form | None:
        if isinstance(form, SampledProducts):  # whose gradients are torch's
            return form
        if isinstance(form, NeuralScore) and not form.mixing:
            return replace(form, rho_shared=self.rho_shared, rho_private=self.rho_private)
        if isinstance(form, AdditiveScore) and form.common and form.own and not (form.mixing or form.alternate):
            return replace(form, rho=self.rho_private, common_rho=self.rho_shared)
        if isinstance(form, LinearScore) and not form.mixing:
            return replace(form, rho=self.rho_private, item_rho=self.rho_private if form.own else self.rho_shared)
        return None

    def gradient(self, step: Step, names: Sequence[str]) -> Params:
        declared = self.shared()
        shared = [name for name in names if name in declared]
        private = [name for name in names if name not in declared]
        return sharpness_aware(super().gradient, step, [(shared, self.rho_shared), (private, self.rho_private)])
