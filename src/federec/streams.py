"""Randomness as a pure function of (seed, round, user, draw).

Every random number of a run is `mix(key + draw * GOLDEN)`: the SplitMix64 generator, read at a chosen
position. It has no state, so the numbers are the same in any order of evaluation and for any chunk size,
rank, thread or real device.

The functions work on arrays of signed 64-bit integers, of numpy or of torch. Multiplication wraps around in
both; a mask turns the arithmetic right shift into a logical one.
"""

from __future__ import annotations

from typing import Any

Array = Any  # numpy.ndarray or torch.Tensor, of 64-bit integers


def _signed(number: int) -> int:
    """The lowest 64 bits of `number`, read as a signed integer (two's complement)."""
    number &= 0xFFFF_FFFF_FFFF_FFFF
    return number - (1 << 64) if number >> 63 else number


GOLDEN = _signed(0x9E37_79B9_7F4A_7C15)
_FIRST = _signed(0xBF58_476D_1CE4_E5B9)
_SECOND = _signed(0x94D0_49BB_1331_11EB)

# The draws of one device in one round are numbered. Each purpose has its own base, so purposes never overlap.
NEGATIVES = 0 << 40
SHUFFLE = 1 << 40
SELECTION = 2 << 40
CANDIDATES = 3 << 40
HOLDOUT = 4 << 40
MATCHING = 5 << 40
COVER = 6 << 40
NOISE = 7 << 40
LAPLACE = 8 << 40
EVALUATED = 9 << 40
GAUSSIAN = 10 << 40
ROUNDING = 11 << 40
VALIDATION = 12 << 40
TIES = 13 << 40
DROPOUT = 14 << 40
CENTRAL = 15 << 40
SIGNS = 16 << 40
SKELLAM = 17 << 40
FINER = 18 << 40
ATTACK = 19 << 40

# Rounds count from 1. Draws that are made once per run use round 0.
ONCE = 0


def mix(z: Array) -> Array:
    """SplitMix64's output function: a bijection of 64-bit integers. Every output bit depends on every input bit."""
    z = z ^ ((z >> 30) & 0x3_FFFF_FFFF)  # a new array, which then changes in place
    z *= _FIRST
    high = z >> 27
    high &= 0x1F_FFFF_FFFF
    z ^= high
    z *= _SECOND
    high = z >> 31
    high &= 0x1_FFFF_FFFF
    z ^= high
    return z


def _mix_int(number: int) -> int:
    z = number & 0xFFFF_FFFF_FFFF_FFFF
    z = ((z ^ (z >> 30)) * (_FIRST & 0xFFFF_FFFF_FFFF_FFFF)) & 0xFFFF_FFFF_FFFF_FFFF
    z = ((z ^ (z >> 27)) * (_SECOND & 0xFFFF_FFFF_FFFF_FFFF)) & 0xFFFF_FFFF_FFFF_FFFF
    return _signed(z ^ (z >> 31))


def keys(seed: int, round_: int, users: Array) -> Array:
    """One stream key per user: a hash of (seed, round, user)."""
    return mix(users * GOLDEN + base(seed, round_))


def key(seed: int, round_: int, user: int) -> int:
    """The stream key of one user, without an array."""
    return _mix_int(user * GOLDEN + base(seed, round_))


def base(seed: int, round_: int) -> int:
    """What the keys of a round begin with: a hash of (seed, round)."""
    return _mix_int(_mix_int(seed) + round_ * GOLDEN)


def seed_of(seed: int, number: int) -> int:
    """A seed of 31 bits for another generator, one for each number: torch's on a CPU takes only the low 32 bits."""
    return _mix_int(_mix_int(seed) + number * GOLDEN) & 0x7FFF_FFFF


def bits(key: Array, draw: Array | int) -> Array:
    """64 random bits for each draw of a stream; `key` and `draw` (array or plain number) broadcast."""
    return mix(_signed(draw * GOLDEN) + key if isinstance(draw, int) else later(key, draw))


def later(key: Array, draw: Array) -> Array:
    """The key of a stream that begins at this draw of another one: its draw n is draw + n of that one."""
    return key + draw * GOLDEN


def below(random: Array, bound: Array) -> Array:
    """Integers in [0, bound) from 64 random bits: multiply-shift on the upper half; bound < 2**31."""
    return (((random >> 32) & 0xFFFF_FFFF) * bound) >> 32


def unit(random: Array) -> Array:
    """Numbers in [0, 1) with 24 random bits, exact in float32 too."""
    return ((random >> 40) & 0xFF_FFFF) * (1.0 / (1 << 24))
