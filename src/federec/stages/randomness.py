"""Where the random numbers of stages come from: noise, and rounding at random.

A simulation has to be repeatable: its numbers are a pure function of (seed, round, device, draw). A real device's must
be foreseen by nobody: they come from the operating system's cryptographic generator, new for every message. So a
message that has to leave a second time is stored and sent again, never drawn again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from federec import streams
from federec.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


class Randomness(Protocol):
    """Random bits for the devices of a cohort."""

    def bits(self, owner: Tensor, draw: Tensor) -> Tensor:
        """64 bits for each of the draws [R, W] of the devices with these places in the cohort [R]."""


@dataclass(frozen=True)
class Simulated:
    """Of simulated devices."""

    keys: Tensor
    """[C] of their random streams in a round."""

    @staticmethod
    def of(seed: int, round_: int, numbers: Tensor) -> Simulated:
        """Of the devices with these numbers in the run's random streams."""
        return Simulated(streams.keys(seed, round_, numbers))

    def bits(self, owner: Tensor, draw: Tensor) -> Tensor:
        found: Tensor = streams.bits(self.keys[owner][:, None], draw)
        return found


class Real:
    """Of a real device: never the same twice."""

    def bits(self, owner: Tensor, draw: Tensor) -> Tensor:
        if not draw.numel():  # torch cannot read an empty buffer
            return torch.zeros_like(draw)
        return torch.frombuffer(bytearray(os.urandom(8 * draw.numel())), dtype=torch.int64).view(draw.shape)
