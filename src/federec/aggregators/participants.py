"""Participants: an item's row moves only as far as the number of devices that touched it allows.

    result_j = min(1, n_j / least) * 1/N sum_i x_ij min(1, norm_j / |x_ij|)       norm_j: median of |x_ij|

So one device cannot own a rare item's row: of a row that only one device touched, it moves 1/least of what the device
asks for, and of a row that many touched, none moves more than an ordinary one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import PositiveInt
from torch import Tensor

from federec.aggregators.base import AggregatorSettings
from federec.aggregators.gathered import Gathered, Updates
from federec.aggregators.item_clip import clipped


class ParticipantsSettings(AggregatorSettings):
    """What can be set."""

    aggregator: ClassVar[str] = "participants"

    least: PositiveInt = 20
    """Devices that must have touched a row for it to move all the way."""


@dataclass
class Participants(Gathered):
    """The mean of bounded rows, less of it for rows that few devices touched."""

    name: ClassVar[str] = "participants"
    options: ClassVar[type[AggregatorSettings] | None] = ParticipantsSettings

    def combined(self, sent: Updates) -> tuple[Tensor, Tensor]:
        assert isinstance(self.settings, ParticipantsSettings)
        rows, layers = clipped(sent, None)
        allowed = (sent.touched / self.settings.least).clamp(max=1.0)
        return sent.summed(rows) * allowed[:, None] / sent.devices, layers.sum(0) / sent.devices
