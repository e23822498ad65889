"""Ridge regression whose system is so large that there must be no second copy of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def block_ridge(
    blocks: Mapping[tuple[int, int], Tensor], targets: Sequence[Tensor], penalties: Sequence[float]
) -> Tensor:
    """(A + diag(penalties))^-1 Y, [kinds, n, m]. `blocks` has, for a <= b, the block (a, b) [n, n] of the symmetric A;
    `targets` are the blocks [n, m] of Y. Computed in 64 bits, in which the system takes as much memory as 64-bit
    numbers must; not a number where A is not positive definite, as when there is too much noise in it."""
    kinds, (width, outputs) = len(targets), targets[0].shape
    system = targets[0].new_empty(kinds, width, kinds, width, dtype=torch.float64)
    for (a, b), block in blocks.items():
        system[b, :, a] = block.mT
        system[a, :, b] = block
    for a, penalty in enumerate(penalties):
        system[a, :, a].diagonal().add_(penalty)
    transposed = targets[0].new_empty(outputs, kinds, width, dtype=torch.float64)
    for a, target in enumerate(targets):
        transposed[:, a] = target.mT
    try:
        solved = _solved(system.view(kinds * width, -1), transposed.view(outputs, -1))
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        solved = transposed.view(outputs, -1).mT.fill_(torch.nan)
    del system
    return solved.float().view(kinds, width, outputs).contiguous()


def _solved(system: Tensor, transposed: Tensor) -> Tensor:
    """A^-1 Y of the symmetric `system` A [n, n] and the `transposed` Y [m, n], in the memory of the latter; both are
    overwritten. Torch works in place only on matrices whose columns lie one after the other, hence the transposing."""
    lower, result = system.mT, transposed.mT
    torch.linalg.cholesky(lower, out=lower)
    torch.linalg.solve_triangular(lower, result, upper=False, out=result)
    torch.linalg.solve_triangular(lower.mT, result, upper=True, out=result)
    return result
