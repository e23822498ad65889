"""CPU kernel for the sum of many devices' Laplace noise: of what `stages.noise.laplace` draws for each of them.

Noise is log(m) or -log(m), with m one of 1 / 2^16, 3 / 2^16, 5 / 2^16, ...: a sum of noise is the logarithm of a ratio
of two products. So a value costs two multiplications on each device, and one logarithm for all of them. Noise of single
devices is rounded to 32 bits, products are not: the sum agrees to rounding.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from federec.kernels.compiling import kernel
from federec.kernels.cpu import bits

BLOCK = 64
"""Words of random bits, for four values each, that are at work at a time: their products stay in the first cache."""
_FACTORS = 60  # of 16 bits each: a float64 holds their products, and the ratio of two

_MANTISSA = np.int64((1 << 52) - 1)
_ONE = np.int64(1023 << 52)  # the bits of 1.0
_LOG_2 = math.log(2.0)


class Products(NamedTuple):
    """Memory of one thread."""

    words: Any
    """[BLOCK] random bits."""
    above: Any
    below: Any
    """[4, BLOCK] the two products."""
    power: Any
    """[4, BLOCK] powers of two that were taken out of their ratio."""


def make_products() -> Products:
    """For one thread."""
    return Products(np.zeros(BLOCK, np.uint64), *np.zeros((3, 4, BLOCK)))


@kernel
def laplace_sum(products: Any, keys: Any, first: Any, scale: Any, out: Any) -> None:
    """Into `out` the sum of noise of this scale over devices with these keys; its draws begin with `first`."""
    words, above, below, power = products
    for start in range(0, len(out), 4 * BLOCK):
        draw = np.uint64(first) + np.uint64(start // 4)
        above.fill(1)
        power.fill(0)
        for some in range(0, len(keys), _FACTORS):
            below.fill(1)
            for key in keys[some : some + _FACTORS]:
                for word in range(BLOCK):
                    words[word] = bits(key, draw + np.uint64(word))
                for k in range(4):
                    over, under, shift = above[k], below[k], np.uint64(16 * k)
                    for word in range(BLOCK):
                        level = np.int64((words[word] >> shift) & np.uint64(0xFFFF))
                        share = np.float64(2 * level - 0xFFFF) * (1.0 / 0x10000)
                        over[word] *= share if share > 0 else 1.0
                        under[word] *= 1.0 if share > 0 else -share
            for k in range(4):
                over, under, twos = above[k], below[k], power[k]
                for word in range(BLOCK):  # the ratio is set back to [1, 2), its power of two counted
                    ratio = np.float64(over[word] / under[word]).view(np.int64)
                    twos[word] += np.float64((ratio >> 52) - 1023)
                    over[word] = np.int64((ratio & _MANTISSA) | _ONE).view(np.float64)
        for place in range(start, min(start + 4 * BLOCK, len(out))):
            word, k = (place - start) // 4, place % 4
            out[place] = scale * (math.log(above[k, word]) + _LOG_2 * power[k, word])
