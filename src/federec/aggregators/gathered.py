"""Aggregators that need all updates of a round before they can say anything: robust ones.

    result_j = n_j / N * statistic(x_ij : device i touched row j)        of rows;  n_j of N devices touched row j
    result   = statistic(x_i : all N devices)                            of layers

With the mean as the statistic this is the plain mean, in which a row that a device did not touch counts as zero. So the
steps of a method fit all of them. A device with a value that is not a number counts as one that changed nothing.

Updates are kept as they come, ragged: memory grows with the rows that devices touched, not with devices x items. What
is computed from them is computed in blocks of items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from federec.aggregators.base import Aggregator
from federec.cohort.layers import Params
from federec.cohort.memory import too_large
from federec.cohort.update import Update
from federec.errors import UserError

_BLOCK = 1 << 23
"""Values of a block of items, padded."""
_DEVICES = 128
"""Devices whose products with others are computed at a time."""


@dataclass(frozen=True)
class Updates:
    """All updates of a round, side by side."""

    n_items: int
    devices: int
    """How many are counted: those that sent something, and those that stand for missing ones."""
    ids: Tensor
    """[R] item of each row."""
    owner: Tensor
    """[R] device of each row, by its place among those that sent something."""
    rows: Tensor
    """[R, W] values of all item tables."""
    layers: Tensor
    """[D, L] values of all layers, flat."""

    def __len__(self) -> int:
        return len(self.layers)

    @cached_property
    def touched(self) -> Tensor:
        """[n_items] devices that touched each row."""
        return torch.bincount(self.ids, minlength=self.n_items)

    @cached_property
    def squares(self) -> Tensor:
        """[D] squared norm of each device's update."""
        total = self.layers.square().sum(1)
        return total.index_add(0, self.owner, self.rows.square().sum(1))

    def weighted(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [n_items, W] and layers [L]: the sum of the updates, each times its weight [D]."""
        return self.summed(self.rows * weights[self.owner, None]), weights @ self.layers

    def summed(self, rows: Tensor) -> Tensor:
        """[n_items, W] sums of rows [R, W], item by item."""
        total = rows.new_zeros(self.n_items, rows.shape[1])
        return total.index_add_(0, self.ids, rows)

    def blocks(self, width: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Items that somebody touched, a few of like counts at a time: their codes [K], how many devices touched each
        [K], and the places [K, n] of their rows, the last one repeated. `width`: values of a row that are held."""
        order = self.ids.argsort(stable=True)
        start = self.touched.cumsum(0) - self.touched
        items = self.touched.argsort(descending=True, stable=True)
        items = items[: int(self.touched.count_nonzero())]
        while len(items):
            most = int(self.touched[items[0]])
            some, items = items.tensor_split([max(1, _BLOCK // (most * max(width, 1)))])
            count = self.touched[some]
            column = torch.arange(most, device=some.device)
            yield some, count, order[start[some, None] + column.minimum(count[:, None] - 1)]

    @cached_property
    def gram(self) -> Tensor:
        """[D, D] inner products of the updates; devices x devices x values operations, in blocks of items."""
        total = (self.layers @ self.layers.T).double()
        width = self.rows.shape[1]
        size = max(1, _BLOCK // max(1, len(self) * width))
        order = self.ids.argsort(stable=True)
        bounds = torch.cat([self.touched.new_zeros(1), self.touched.cumsum(0)])
        for first in range(0, self.n_items, size):
            last = min(first + size, self.n_items)
            some = order[int(bounds[first]) : int(bounds[last])]
            block = self.rows.new_zeros(len(self), last - first, width)
            block[self.owner[some], self.ids[some] - first] = self.rows[some]
            flat = block.flatten(1)
            for start in range(0, len(self), _DEVICES):  # one half of the products is that of the other
                total[start:, start : start + _DEVICES] += flat[start:] @ flat[start : start + _DEVICES].T
        return total.tril() + total.tril(-1).T

    def distances(self) -> Tensor:
        """[D, D] squared distances between the updates."""
        square = self.gram.diagonal()
        return (square[:, None] + square[None] - 2 * self.gram).clamp(min=0)


@dataclass
class Gathered(Aggregator):
    """Keeps all updates; subclasses say in `combined` what becomes of them."""

    linear: ClassVar[bool] = False
    gathers: ClassVar[bool] = True

    parts: list[tuple[Update, Tensor]] = field(default_factory=list)
    """Cohorts' updates, and which of their devices count."""
    kept: int = 0
    """Rows in them."""

    def add(self, update: Update, devices: int | None = None) -> None:
        self.kept += len(update.ids)
        if too_large((self.kept, update.width), np.dtype(np.float32)):
            size = f"{4 * self.kept * update.width / 2**30:.1f} GiB"
            raise UserError(f"aggregator '{self.name}' would hold {size} of updates; take fewer devices: participation")
        self.parts.append((update, finite(update)))
        self.devices += len(update) if devices is None else devices

    def merge(self, total: Params, devices: int) -> None:
        raise UserError(f"aggregator '{self.name}' needs single updates, and these are summed already")

    def result(self) -> Params:
        if not self.parts:
            return {}
        first = self.parts[0][0]
        rows, layers = self.combined(self.updates())
        found: Params = {}
        widths = [values.shape[1] for values in first.rows.values()]
        found |= dict(zip(first.rows, rows.split(widths, 1), strict=True))
        shapes = {name: layer.shape[1:] for name, layer in first.layers.items()}
        flat = layers.split([shape.numel() for shape in shapes.values()])
        return found | {name: part.view(shapes[name]) for name, part in zip(shapes, flat, strict=True)}

    def updates(self) -> Updates:
        """What has come, side by side; without the devices that do not count."""
        ids, owner, rows, layers, devices = [], [], [], [], 0
        for update, counts in self.parts:
            place = torch.where(counts, counts.cumsum(0) - 1, -1) + devices * counts
            mine = place[update.owner]
            real = mine >= 0
            table = torch.cat(list(update.rows.values()), 1) if update.rows else update.ids.new_zeros(len(mine), 0)
            flat = [layer.flatten(1) for layer in update.layers.values()]
            ids.append(update.ids[real])
            owner.append(mine[real])
            rows.append(table[real].float())
            empty = rows[-1].new_zeros(len(update), 0)
            layers.append((torch.cat(flat, 1) if flat else empty)[counts])
            devices += int(counts.sum())
        return Updates(self.n_items, self.devices, *map(torch.cat, (ids, owner, rows, layers)))

    def combined(self, sent: Updates) -> tuple[Tensor, Tensor]:
        """What the server steps with: rows [n_items, W] and layers [L]."""
        raise NotImplementedError(f"{type(self).__name__}.combined")


def finite(update: Update) -> Tensor:
    """[C] whether all values of a device are numbers."""
    fine = torch.ones(len(update), dtype=torch.bool, device=update.counts.device)
    for rows in update.rows.values():
        fine[update.owner[~rows.isfinite().all(1)]] = False
    for layer in update.layers.values():
        fine &= layer.flatten(1).isfinite().all(1)
    return fine


def sorted_values(values: Tensor) -> Tensor:
    """Sorted along the last dimension."""
    if values.device.type == "cpu":  # numpy sorts several times faster than torch
        return torch.from_numpy(np.sort(values.numpy(), axis=-1))
    return values.sort(-1).values


def median_of(values: Tensor, count: Tensor) -> Tensor:
    """[K] medians of the first `count` [K] values of each row [K, n]."""
    column = torch.arange(values.shape[1], device=values.device)
    ranked = sorted_values(values.masked_fill(column >= count[:, None], torch.inf))
    below, above = (count - 1).div(2, rounding_mode="floor"), count.div(2, rounding_mode="floor")
    return (ranked.gather(1, below[:, None]) + ranked.gather(1, above[:, None]))[:, 0] / 2
