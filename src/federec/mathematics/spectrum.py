"""How many of its dimensions an item table uses: its singular values, and the rank they amount to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from federec.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def singular_values(table: Tensor) -> Tensor:
    """Singular values of a table [M, dim], largest first: from its dim x dim gram matrix, so cheap for many items."""
    table = table.double()
    gram = (table.T @ table).cpu()  # a GPU takes longer to begin than this is work
    if not gram.isfinite().all():  # a run that diverged
        return gram.new_full((len(gram),), torch.nan)
    squares: Tensor = torch.linalg.eigvalsh(gram)
    return squares.clamp(min=0).sqrt().flip(0)


def effective_rank(values: Tensor) -> float:
    """exp of the entropy of the singular values as shares of their sum (Roy and Vetterli, EUSIPCO 2007): dim where all
    are alike, 1 where one has it all."""
    shares = values / values.sum()
    return float(torch.special.entr(shares).sum().exp())
