"""Exact samples of the Skellam distribution, the difference of two Poisson variables with the same mean v / 2:

    P(k) = e^-v I_k(v),  k in Z           variance v; a sum of such variables is one, too, with the sum of variances

A sample is found by inversion: the smallest k with u < P(X <= k), for u uniform in [0, 1). The distribution function is
tabled with whole numbers of 192 bits, by Miller's recurrence for I_k; no floating-point number is involved. The first
62 bits of u decide nearly always. Where they equal those of a table entry, 128 more bits are drawn. What is left
undecided after 190 bits has probability below 2^-170.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from federec import streams
from federec.lazy import torch
from federec.stages.randomness import Randomness

if TYPE_CHECKING:
    from torch import Tensor

_COARSE = 62  # bits of u that are drawn for every sample
_FINE = 128  # and for those that these do not decide
_TABLE = _COARSE + _FINE + 2


class Table(NamedTuple):
    """The distribution function from -most to most."""

    most: int
    coarse: Tensor
    """[2 most + 1] its first 62 bits, ascending."""
    fine: tuple[int, ...]
    """The next 128 bits of each."""


@lru_cache(maxsize=8)
def table(variance: float, coarse: int = _COARSE) -> Table:
    """The table of a variance; `coarse` is the number of bits that are looked at first."""
    most = _most(variance)
    half = bessel(variance, most)
    whole = half[0] + 2 * sum(half[1:])
    total, coarse_bits, fine = 0, [], []
    for k in range(-most, most + 1):
        total += half[abs(k)]
        value = min((total << (coarse + _FINE)) // whole, (1 << (coarse + _FINE)) - 1)
        coarse_bits.append(value >> _FINE)
        fine.append(value & ((1 << _FINE) - 1))
    return Table(most, torch.tensor(coarse_bits), tuple(fine))


def bessel(variance: float, most: int) -> list[int]:
    """I_0, ..., I_most of a variance, up to a common factor, to 192 bits: I_(k-1) = I_(k+1) + (2k / v) I_k from the
    far end down, where any start grows into the right proportions."""
    numerator, denominator = float(variance).as_integer_ratio()
    start = 2 * most + 64
    found, above, here = [0] * (start + 1), 0, 1 << (2 * _TABLE)
    for k in range(start, 0, -1):
        found[k] = here
        above, here = here, above + 2 * k * denominator * here // numerator
    found[0] = here
    return found[: most + 1]


def _most(variance: float) -> int:
    """Beyond it lies less than 2^-192 of the probability: P(|X| >= k) <= 2 exp(-k^2 / (2 (v + k / 3)))  (Bernstein)."""
    bits = (_TABLE + 2) * math.log(2)
    return math.ceil(bits / 3 + math.sqrt((bits / 3) ** 2 + 2 * bits * variance))


def skellam(
    random: Randomness, owner: Tensor, first: int, values: int, variance: float, coarse: int = _COARSE
) -> Tensor:
    """[R, values] samples for devices with these places in the cohort [R]."""
    found = table(variance, coarse)
    draw = torch.arange(values, device=owner.device)
    u = random.bits(owner, (first + draw).expand(len(owner), -1)) >> (64 - coarse) & ((1 << coarse) - 1)
    thresholds = found.coarse.to(owner.device)
    place = torch.searchsorted(thresholds, u)  # the first that is not below u
    place.clamp_(max=2 * found.most)
    undecided = (thresholds[place] == u).nonzero()
    for row, column in undecided.tolist():
        more = random.bits(owner[row : row + 1], torch.tensor([[2 * column, 2 * column + 1]]) + streams.FINER)
        high, low = (int(word) & 0xFFFF_FFFF_FFFF_FFFF for word in more[0])
        at = int(place[row, column])
        while at < 2 * found.most and thresholds[at] == u[row, column] and (high << 64 | low) >= found.fine[at]:
            at += 1
        place[row, column] = at
    return place - found.most
