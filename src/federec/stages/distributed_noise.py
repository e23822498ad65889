"""Distributed noise: each device adds its part of the noise before the sum, so that the server need not be trusted with
single updates (the distributed Skellam mechanism: Agarwal, Kairouz and Liu, NeurIPS 2021, after Kairouz, Liu and
Steinke, ICML 2021; `ddp_secure_aggregator` of TensorFlow Federated).

    x = H D u                                 u: the clipped update, whole tables, as one vector of d values, d = 2^n;
                                              D: public random signs, H: Hadamard's rotation, which spreads values out
    y = round(s x) at random, |y|_2 <= bound  whole numbers; drawn again until they are short enough
    sent = y + Skellam((multiplier bound)^2 / devices)   modulo 2^32

The sum over `devices` or more devices has noise of variance (multiplier bound)^2 or more. The server divides by s and
rotates back. Behind it, `secure-sum` masks the whole numbers as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

from pydantic import NonNegativeFloat, PositiveInt, PrivateAttr

from federec import streams
from federec.cohort.layers import Param, Params
from federec.cohort.update import Update
from federec.lazy import torch
from federec.stages.base import Format, Promise, Settling, Stage, shapes
from federec.stages.dense import Dense
from federec.stages.noise import uniform
from federec.stages.randomness import Randomness
from federec.stages.skellam import skellam

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

Whole = TypeVar("Whole", "Tensor", "NDArray[np.int64]")

NOISED = "@noised"
"""Name of the vector of whole numbers that an update becomes."""
BITS = 32
"""Of a whole number on its way: sums wrap around."""
_FINENESS = 10.0  # s clip / sqrt(d): rounding then makes the bound less than 1% longer
_TRIES = 64  # of rounding; each is short enough with probability 1 - exp(-1/2) or more


class DistributedNoise(Stage):
    """Let each device add its part of the noise, in whole numbers, before a secure sum.

    >>> noise = fr.DistributedNoise(multiplier=1.0)
    >>> private = fr.train("fedmf", data, rounds=1, channel=[fr.Clip(norm=1.0), noise, fr.SecureSum()])
    >>> private.result["privacy"]["accountant"]
    'rdp'
    """

    name: ClassVar[str] = "distributed-noise"
    quiet: ClassVar[tuple[str, ...]] = ("multiplier", "devices")
    per_user: ClassVar[bool] = True
    fetches_all: ClassVar[bool] = True

    multiplier: NonNegativeFloat | None = None
    """Standard deviation of the noise on the sum / largest norm of one user's rounded update. Not given: what the run's
    epsilon asks for."""
    devices: PositiveInt | None = None
    """Devices in a sum that are counted on to add their part. Not given: those that the run asks in a round."""

    _clip: float = PrivateAttr(default=1.0)

    def bound(self, known: Promise) -> Self:
        made = self.model_copy()
        made._clip = known.clip or self._clip
        return made

    def device(self, update: Update, random: Randomness) -> Update:
        whole = Dense().device(update, random)
        vector = torch.cat([value.reshape(len(update), -1) for _, value in sorted(whole.values().items())], 1)
        size, owner = padded(vector.shape[1]), torch.arange(len(update), device=vector.device)
        vector = torch.nn.functional.pad(vector, (0, size - vector.shape[1]))
        rotated = hadamard(vector * signs(size).to(vector)) * self.scale(size)
        sent = rounded(rotated, longest(self.scale(size) * self._clip, size), random)
        if self.multiplier:
            sent += skellam(random, owner, streams.SKELLAM, size, self.variance(size) / self.counted)
        return Update(update.n_items, update.ids[:0], torch.zeros_like(update.counts), {}, {NOISED: wrapped(sent)})

    @property
    def counted(self) -> int:
        """Devices whose noise is counted on."""
        return self.devices or 1

    def scale(self, size: int) -> float:
        """By which values are multiplied before they are rounded."""
        return _FINENESS * math.sqrt(size) / self._clip

    def l2(self, size: int) -> float:
        """Sensitivity of the sum: the largest norm of one user's whole numbers."""
        return longest(_FINENESS * math.sqrt(size), size)

    def l1(self, size: int) -> float:
        """The same in the sum of absolute values."""
        return self.l2(size) * min(math.sqrt(size), self.l2(size))

    def variance(self, size: int) -> float:
        """Of the noise on each value of the sum."""
        return ((self.multiplier or 0.0) * self.l2(size)) ** 2

    def sends(self, known: Mapping[str, Param], n_items: int) -> Mapping[str, Param]:
        return {NOISED: Param((padded(sum(map(math.prod, shapes(known, n_items).values()))),), "zeros")}

    def server(self, total: Params, settling: Settling) -> Params:
        if NOISED not in total:
            return total
        vector = wrapped(total[NOISED])
        size = len(vector)
        back = hadamard(vector.double()[None] / self.scale(size))[0] * signs(size).to(vector.device)
        found, start = Params(), 0
        for name, shape in sorted(shapes(settling.sends, settling.n_items).items()):
            end = start + math.prod(shape)
            found[name], start = back[start:end].view(shape).float(), end
        return found

    def format(self, known: Format) -> Format:
        return Format("all")

    def promise(self, known: Promise) -> Promise:
        multiplier = self.multiplier or 0.0
        share = multiplier / math.sqrt(self.counted)  # of one device
        return known._replace(noise="distributed", multiplier=multiplier, scale=share)


def padded(values: int) -> int:
    """The next power of two."""
    return 1 << max(0, values - 1).bit_length()


@lru_cache(maxsize=4)
def signs(size: int) -> Tensor:
    """Random signs that everybody knows. They are the same in all rounds: they only have to be independent of data."""
    bits = streams.bits(streams.keys(0, streams.ONCE, torch.tensor([0])), streams.SIGNS + torch.arange(size))
    found: Tensor = ((bits >> 40 & 1) * 2 - 1).float()
    return found


def hadamard(x: Tensor) -> Tensor:
    """The Walsh-Hadamard rotation of each row [R, 2^n]; it is its own inverse."""
    rows, size = x.shape
    half = 1
    while half < size:
        pairs = x.view(rows, -1, 2, half)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        x = torch.stack([a + b, a - b], 2).view(rows, size)
        half *= 2
    return x / math.sqrt(size)


def longest(norm: float, size: int) -> float:
    """Bound on the norm of a vector of this norm after it was rounded at random (Kairouz et al. 2021, with beta =
    exp(-1/2)): a random rounding is within it with probability 1 - beta or more."""
    root = math.sqrt(size)
    return min(norm + root, math.sqrt(norm**2 + size / 4 + norm + root / 2))


def rounded(x: Tensor, bound: float, random: Randomness) -> Tensor:
    """Rows [R, size] in whole numbers, up or down at random, each within the bound. A row that is never is rounded
    towards zero, which makes nothing longer."""
    found, left = x.trunc().long(), torch.arange(len(x), device=x.device)
    found[found.double().square().sum(1) > bound**2] = 0  # not clipped, or not numbers
    for attempt in range(_TRIES):
        first = streams.ROUNDING + (attempt << 36)
        tried = (x[left] + uniform(random, left, first, torch.zeros_like(left), x.shape[1])).floor().long()
        short = tried.double().square().sum(1) <= bound**2
        found[left[short]] = tried[short]
        left = left[~short]
        if not len(left):
            break
    return found


def wrapped(values: Whole) -> Whole:
    """Whole numbers modulo 2^32, between -2^31 and 2^31."""
    half = 1 << (BITS - 1)
    return (values + half & (1 << BITS) - 1) - half
