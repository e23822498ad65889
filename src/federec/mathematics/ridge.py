"""Ridge regression whose system is so large that there must be no second copy of it."""

from __future__ import annotations

import torch
from torch import Tensor


def ridge_(system: Tensor, target: Tensor) -> Tensor:
    """A^-1 Y of a symmetric, positive definite A [n, n] and Y' = `target` [m, n], in the memory of the target; both
    are overwritten. Torch works in place only on columns that lie one after the other, hence the transposed target.
    Raises torch.linalg.LinAlgError where A is not positive definite."""
    lower, result = system.mT, target.mT
    torch.linalg.cholesky(lower, out=lower)
    torch.linalg.solve_triangular(lower, result, upper=False, out=result)
    torch.linalg.solve_triangular(lower.mT, result, upper=True, out=result)
    return result
