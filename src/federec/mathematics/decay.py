"""Sums over the positions of a sequence whose items fade with distance, in closed form.

At position t of a sequence of distinct items k_0, k_1, ... the items before it weigh s_t(k) = a^(t-k-1), those from it
on y_t(l) = g^(l-t); a and g are the factors by which a weight falls from one item to the next. Summed over t >= 1,
    sum_t s_t(k) s'_t(l)  =  a^(m-k) b^(m-l) (1 + ab + ... + (ab)^(n-1)),   m = max(k, l), n items after m
    sum_t s_t(k) y_t(l)   =  a^(d-1) + a^(d-2) g + ... + g^(d-1),           d = l - k > 0
where s' has the factor b. So the value of a pair is a product of two numbers from tables: one by the distance of its
items, and one by the number of items after both. A pair costs nothing more, however long the sequence is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_BLOCK = 64
"""Positions that are summed by one product."""


class PairTables(NamedTuple):
    """Each [longest sequence, parts]: several values of a pair, side by side."""

    later: Tensor
    """By distance, where the second item of the pair is the first itself or a newer one."""
    earlier: Tensor
    """By distance, where the second item is older than the first."""
    following: Tensor
    """By the number of items after both."""

    def to(self, device: torch.device) -> PairTables:
        """The tables on that device."""
        return PairTables(*(table.to(device) for table in self))

    def value(self, part: int, first: Tensor, second: Tensor) -> Tensor:
        """The value of pairs whose items have these ages (`History.age`)."""
        apart, follow = (first - second).abs(), torch.minimum(first, second)
        by_distance = torch.where(second <= first, self.later[apart, part], self.earlier[apart, part])
        return by_distance * self.following[follow, part]


def side_by_side(tables: Sequence[PairTables]) -> PairTables:
    """The parts of all tables."""
    return PairTables(*(torch.cat(columns, 1) for columns in zip(*tables, strict=True)))


def both_before(a: float, b: float, longest: int) -> PairTables:
    """Of sum_t s_t(k) s'_t(l)."""
    distance = torch.arange(longest, dtype=torch.float64)
    return _tables(a**distance, b**distance, mixed(a * b, 1.0, longest))


def before_and_after(a: float, g: float, longest: int) -> PairTables:
    """Of sum_t s_t(k) y_t(l)."""
    values = mixed(a, g, longest)
    return _tables(values, torch.zeros_like(values), torch.ones_like(values))


def together(longest: int) -> PairTables:
    """1 for every pair: the co-occurrence of a device's items."""
    ones = torch.ones(longest, dtype=torch.float64)
    return _tables(ones, ones, ones)


def running(x: Tensor, fall: float) -> Tensor:
    """sum_{k <= t} fall^(t-k) x_k for every position t of x [C, L, width]: by products within blocks of positions, to
    which is added what has faded since the blocks before."""
    place = torch.arange(min(_BLOCK, x.shape[1]), device=x.device)
    apart = place[:, None] - place
    within, after = fall ** apart.clamp(min=0).to(x) * (apart >= 0), (fall ** (place + 1).to(x))[:, None]
    before, found = x[:, :1] * 0, []
    for block in x.split(_BLOCK, 1):
        some = slice(block.shape[1])
        found.append(torch.addcmul(within[some, some] @ block, after[some], before))
        before = found[-1][:, -1:]
    return torch.cat(found, 1)


def mixed(a: float, g: float, longest: int) -> Tensor:
    """a^(n-1) + a^(n-2) g + ... + g^(n-1) for n = 0, 1, ...; 0 for n = 0. By adding up, since (a^n - g^n) / (a - g)
    loses digits where a is near g."""
    values = [0.0]
    power = 1.0
    for _ in range(1, longest):
        values.append(a * values[-1] + power)
        power *= g
    return torch.tensor(values[:longest], dtype=torch.float64)


def factor(half_life: float, never: float) -> float:
    """By what a weight falls from one item to the next; `never` for a half-life of 0."""
    return 0.5 ** (1 / half_life) if half_life else never


def _tables(*values: Tensor) -> PairTables:
    return PairTables(*(value.float()[:, None] for value in values))
