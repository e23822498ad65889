"""How many of its dimensions an item table uses: its singular values, and the rank they amount to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from federec.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def singular_values(table: Tensor) -> Tensor:
    """Singular values of a table [M, dim], largest first: from its dim x dim gram matrix, so cheap for many items."""
    table = table.double()
    gram = (table.T @ table).cpu().numpy()  # a GPU, and torch, take longer to begin than this is work
    if not np.isfinite(gram).all():  # a run that diverged
        return torch.full((len(gram),), torch.nan, dtype=torch.float64)
    return torch.from_numpy(np.sqrt(np.linalg.eigvalsh(gram)[::-1].clip(0)))


def effective_rank(values: Tensor) -> float:
    """exp of the entropy of the singular values as shares of their sum (Roy and Vetterli, EUSIPCO 2007): dim where all
    are alike, 1 where one has it all."""
    all_ = values.numpy()
    with np.errstate(divide="ignore", invalid="ignore"):  # of a table of zeros, this is not a number
        shares = all_ / all_.sum()
        return float(np.exp(-np.where(shares == 0, 0, shares * np.log(shares)).sum()))
