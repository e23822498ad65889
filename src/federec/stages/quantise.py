"""Quantise: 8 or 16 bits a value (block floating point).

    sent = c 2^e,   |c| <= 2^(bits - 1) - 1       e: one exponent for each row and layer, the smallest that fits it
    c = floor(x / 2^e + r),  r uniform in [0, 1)  rounded at random, so that the mean over many devices stays true

Powers of two keep the codes exact: whoever reads the values can find c and e again (`encode`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from federec import streams
from federec.cohort.update import Update
from federec.lazy import torch
from federec.stages.base import Format, Stage
from federec.stages.noise import drawn, uniform
from federec.stages.randomness import Randomness

if TYPE_CHECKING:
    from torch import Tensor

Bits = Literal[8, 16]
_LEAST = -100  # exponents below it are not used: their rows are as good as zero


class Quantise(Stage):
    """Send values of 8 or 16 bits.

    >>> small = fr.train("fedmf", data, rounds=1, channel=[fr.Quantise(bits=8)])
    """

    name: ClassVar[str] = "quantise"

    bits: Bits = 8
    """Bits of a value."""

    def device(self, update: Update, random: Randomness) -> Update:
        r = drawn(update, random, streams.ROUNDING, uniform)
        return update.with_values({name: self.rounded(value, r[name]) for name, value in update.values().items()})

    def rounded(self, values: Tensor, random: Tensor) -> Tensor:
        """Each row [R, ...] to multiples of its power of two, up or down at random."""
        flat = values.flatten(1)
        step = torch.exp2(exponents(flat, self.bits).float())[:, None]
        codes = (flat / step + random.flatten(1)).floor_().clamp_(-limit(self.bits), limit(self.bits))
        return (codes * step).view_as(values)

    def format(self, known: Format) -> Format:
        return replace(known, value_bits=self.bits, row_bytes=1)


def limit(bits: int) -> int:
    """The largest code."""
    return (1 << bits - 1) - 1


def exponents(rows: Tensor, bits: int) -> Tensor:
    """[R] the smallest e for which all of a row [R, width] lies within +-limit 2^e."""
    most = rows.abs().amax(1) if rows.shape[1] else rows.new_zeros(len(rows))
    mantissa, exponent = torch.frexp(most / limit(bits))  # most / limit = m 2^e with 1/2 <= m < 1
    return torch.where(most > 0, exponent - (mantissa == 0.5).int(), _LEAST).clamp(min=_LEAST)


def encode(values: Tensor, bits: Bits) -> tuple[Tensor, Tensor]:
    """Codes and exponents of values that were quantised, row by row: exact."""
    flat = values.flatten(1)
    exponent = exponents(flat, bits)
    codes = (flat / torch.exp2(exponent.float())[:, None]).round()
    return codes.to(torch.int8 if bits == 8 else torch.int16).view(values.shape), exponent.to(torch.int8)


def decode(codes: Tensor, exponent: Tensor) -> Tensor:
    """The values of codes and exponents."""
    step = torch.exp2(exponent.float())
    return codes.float() * step.view(-1, *[1] * (codes.dim() - 1))
