"""The values that devices start with, as torch draws them: a device without torch must begin where the others do.

torch's CPU generator is the Mersenne Twister, which Python has, too, but seeds otherwise. A uniform number is the
lowest 24 bits of one of its outputs. Normal numbers come sixteen at a time: from uniform u_0 ... u_15 the j-th and the
(j+8)-th are

    sqrt(-2 ln(1 - u_j)) cos(2 pi u_(j+8))   and   sqrt(-2 ln(1 - u_j)) sin(2 pi u_(j+8)),   j < 8

Where their number is no multiple of sixteen, the last sixteen are drawn again. Fewer than sixteen are drawn in 64 bits,
two at a time, and one that is left over is the next.
"""

from __future__ import annotations

import math
import random

import numpy as np
from numpy.typing import NDArray

from federec.cohort.layers import Param

Floats = NDArray[np.float32]

_FEW = 16  # numbers, below which torch draws them in 64 bits
_SOME = 1 << 20  # numbers that are skipped at a time


class Generator:
    """`torch.Generator().manual_seed(seed)`, as far as parameters need it."""

    def __init__(self, seed: int) -> None:
        state = [seed & 0xFFFF_FFFF]  # torch takes no more of the seed
        for place in range(1, 624):
            state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + place) & 0xFFFF_FFFF)
        self._twister = random.Random()
        self._twister.setstate((3, (*state, 624), None))
        self._left: list[float] = []

    def values(self, param: Param, n_items: int) -> Floats:
        """What `Param.start` gives: an item table, or the one copy that all devices begin with."""
        shape = (n_items,) * param.rows + param.sized(n_items)
        if param.init == "zeros":
            return np.zeros(shape, np.float32)
        drawn = self._normal(math.prod(shape)) if param.init == "normal" else self._uniform(math.prod(shape)) * 2 - 1
        return (drawn * np.float32(param.scale)).reshape(shape)

    def skip(self, param: Param, n_items: int) -> None:
        """Draw what `values` would, and forget it."""
        count = math.prod((n_items,) * param.rows + param.sized(n_items))
        if param.init == "normal" and count < _FEW:
            self._few(count)
        elif param.init != "zeros" and count:
            again = _FEW if param.init == "normal" and count % _FEW else 0
            for first in range(0, count + again, _SOME):
                self._bits(min(_SOME, count + again - first))

    def _bits(self, count: int) -> NDArray[np.uint32]:
        return np.frombuffer(self._twister.randbytes(4 * count), "<u4")

    def _uniform(self, count: int) -> Floats:
        return (self._bits(count) & 0xFF_FFFF).astype(np.float32) * np.float32(2.0**-24)

    def _normal(self, count: int) -> Floats:
        if count < _FEW:
            return self._few(count)
        drawn = self._uniform(count)
        whole = count - count % _FEW
        drawn[:whole] = _normal(drawn[:whole])
        if count % _FEW:
            drawn[-_FEW:] = _normal(self._uniform(_FEW))
        return drawn

    def _few(self, count: int) -> Floats:
        found = self._left
        while len(found) < count:
            bits = self._bits(4).tolist()
            turn, far = ((high << 32 | low) & (1 << 53) - 1 for high, low in (bits[:2], bits[2:]))
            radius, angle = math.sqrt(-2 * math.log1p(-far * 2.0**-53)), 2 * math.pi * turn * 2.0**-53
            found = [*found, radius * math.cos(angle), radius * math.sin(angle)]
        self._left = found[count:]
        return np.array(found[:count], np.float32)


def _normal(uniform: Floats) -> Floats:
    """Normal numbers from uniform ones, sixteen by sixteen."""
    first, second = uniform.reshape(-1, 2, _FEW // 2).transpose(1, 0, 2)
    radius, angle = np.sqrt(-2 * np.log(1 - first)), np.float32(2 * np.pi) * second
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).ravel()
