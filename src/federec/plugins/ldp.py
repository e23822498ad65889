"""Local noise on what a device sends (PFedRec, section 6.6 and Table 4): the stage `laplace`, as a plug-in."""

from __future__ import annotations

from typing import ClassVar

from pydantic import NonNegativeFloat

from federec.methods.forms import Form
from federec.plugins.base import Plugin
from federec.stages.base import Stage
from federec.stages.laplace import Laplace


class LDP(Plugin):
    """Laplace noise on every value a device sends.

    >>> (fr.FedMF() | fr.LDP(laplace=0.1)).stages()
    (Laplace(scale=0.1),)
    """

    plugin: ClassVar[str] = "ldp"
    changes_steps: ClassVar[bool] = False

    laplace: NonNegativeFloat = 0.5
    """Scale of the noise; its standard deviation is sqrt(2) times that. 0 adds none."""

    def fuse(self, form: Form) -> Form | None:
        return form  # the channel says what becomes of it

    def stages(self) -> tuple[Stage, ...]:
        return (*super().stages(), Laplace(scale=self.laplace)) if self.laplace else super().stages()
