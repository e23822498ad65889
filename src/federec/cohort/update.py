"""What leaves a device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from federec.cohort.layers import Params
from federec.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Update:
    """The updates of a cohort's devices, stacked. These fields, and nothing else, leave a device."""

    n_items: int
    """Items in the catalogue."""
    ids: Tensor
    """Item codes of the changed rows, device after device, ascending on each."""
    counts: Tensor
    """Changed rows of each device."""
    rows: Params
    """Item table -> change of each row, [len(ids), dim]."""
    layers: Params
    """Shared layer -> change on each device, [C, ...]."""

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def owner(self) -> Tensor:
        """The device, as its position in the cohort, that each changed row comes from."""
        device = torch.arange(len(self), device=self.counts.device)
        return torch.repeat_interleave(device, self.counts, output_size=len(self.ids))

    @property
    def width(self) -> int:
        """Values in a row of all item tables side by side."""
        return sum(rows.shape[1] for rows in self.rows.values())

    def values(self) -> Params:
        """Rows and layers by name."""
        return self.rows | self.layers

    def with_values(self, values: Params) -> Update:
        """The same rows and layers with other values, by name."""
        rows, layers = ({name: values[name] for name in part} for part in (self.rows, self.layers))
        return replace(self, rows=rows, layers=layers)
