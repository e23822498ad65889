"""Secure sum: the server learns the sum over devices and nothing of a single one.

Devices agree on masks that cancel in the sum (network: SecAgg+, Bell et al. 2020). Masks are integers, so a device cuts
its values off beyond +-most and rounds them to one of 2^24 steps; item tables go whole, which names no items. A
simulation needs no masks: it rounds as a device does and counts the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import PositiveFloat

from federec.cohort.update import Update
from federec.stages.base import Format, Promise, Stage
from federec.stages.dense import Dense
from federec.stages.randomness import Randomness

if TYPE_CHECKING:
    from torch import Tensor

STEPS = 1 << 24
"""Into how many steps the range of a value is cut."""


class SecureSum(Stage):
    """Let the server see only sums over devices.

    >>> fr.train("fedmf", data, rounds=1, channel=[fr.SecureSum()]).config.channel
    ({'stage': 'secure-sum', 'most': 2048.0},)
    """

    name: ClassVar[str] = "secure-sum"
    adds_rows: ClassVar[bool] = True
    fetches_all: ClassVar[bool] = True

    most: PositiveFloat = 2048.0
    """Largest value; what is beyond is cut off."""

    def device(self, update: Update, random: Randomness) -> Update:
        whole = Dense().device(update, random)
        return whole.with_values(
            {name: self.rounded(v) if v.is_floating_point() else v for name, v in whole.values().items()}
        )

    def rounded(self, values: Tensor) -> Tensor:
        """To the nearest step."""
        step = 2 * self.most / STEPS
        return (values.clamp(-self.most, self.most) / step).round() * step

    def format(self, known: Format) -> Format:
        return Format("all")  # masked values fill the whole word, whatever they were

    def promise(self, known: Promise) -> Promise:
        return known._replace(hidden=True, rounding=max(known.rounding, self.most / STEPS))
