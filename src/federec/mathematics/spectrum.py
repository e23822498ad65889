"""How many of its dimensions an item table uses: its singular values, and the rank they amount to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from federec.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


_ROWS = 512
"""Of a table on a CPU that are turned into 64-bit numbers at a time: they stay in cache."""


def singular_values(table: Tensor) -> Tensor:
    """Singular values of a table [M, dim], largest first: from its dim x dim gram matrix, so cheap for many items."""
    size = len(table) if table.is_cuda else _ROWS
    total = torch.zeros(table.shape[1], table.shape[1], dtype=torch.float64, device=table.device)
    for part in table.split(max(1, size)):
        rows = part.double()
        total.addmm_(rows.T, rows)
    gram = total.cpu()  # a GPU takes longer to begin than the rest is work
    if not gram.isfinite().all():  # a run that diverged
        return torch.full((len(gram),), torch.nan, dtype=torch.float64)
    # Not NumPy: from 100 columns on its threads wait in a loop for 20 ms, on cores that kernels need.
    found: Tensor = torch.linalg.eigvalsh(gram)
    return found.flip(0).clamp(min=0).sqrt()


def effective_rank(values: Tensor) -> float:
    """exp of the entropy of the singular values as shares of their sum (Roy and Vetterli, EUSIPCO 2007): dim where all
    are alike, 1 where one has it all."""
    all_ = values.numpy()
    with np.errstate(divide="ignore", invalid="ignore"):  # of a table of zeros, this is not a number
        shares = all_ / all_.sum()
        return float(np.exp(-np.where(shares == 0, 0, shares * np.log(shares)).sum()))
