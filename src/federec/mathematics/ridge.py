"""Ridge regression whose system is so large that there must be no second copy of it. On a CPU SciPy's LAPACK solves it:
torch's, by Intel, takes more than twice as long on a processor by AMD. Where few items meet, most of them are
eliminated before (`mathematics.elimination`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import lapack  # type: ignore[import-untyped]
from scipy.sparse import csr_array, diags_array  # type: ignore[import-untyped]
from torch import Tensor

from federec.mathematics.elimination import eliminate

_BLOCK = 512  # rows that are mirrored together
_SPARSE = 0.02
"""Fraction of pairs of items that meet, up to which items are eliminated: on Amazon-Video, with 0.6 %, that saves time
and memory. Where more meet, copies may take more memory than a dense solver."""
_COLUMNS = 1024  # of targets that elimination solves for together


def block_ridge(
    blocks: Mapping[tuple[int, int], Tensor], targets: Sequence[Tensor], penalties: Sequence[float]
) -> Tensor:
    """(A + diag(penalties))^-1 Y, [kinds, n, m]. `blocks` has, for a <= b, the block (a, b) [n, n] of the symmetric A;
    `targets` are the blocks [n, m] of Y. Computed in 64 bits, in which the system takes as much memory as 64-bit
    numbers must; not a number where A is not positive definite, as when there is too much noise in it."""
    last = blocks[len(targets) - 1, len(targets) - 1]  # of the longest half-life, whose numbers do not fade to 0
    sparse = not last.is_cuda and int(last.count_nonzero()) <= _SPARSE * last.numel()
    try:
        return (_sparse if sparse else _dense)(blocks, targets, penalties)
    except (torch.linalg.LinAlgError, np.linalg.LinAlgError):  # type: ignore[attr-defined]
        return torch.stack([torch.full_like(target, torch.nan) for target in targets])


def _dense(blocks: Mapping[tuple[int, int], Tensor], targets: Sequence[Tensor], penalties: Sequence[float]) -> Tensor:
    """By a dense solver."""
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
    solved = _solved(system.view(kinds * width, -1), transposed.view(outputs, -1))
    del system
    return solved.float().view(kinds, width, outputs).contiguous()


def _sparse(blocks: Mapping[tuple[int, int], Tensor], targets: Sequence[Tensor], penalties: Sequence[float]) -> Tensor:
    """By elimination, and a dense solver for what it leaves. The unknowns of an item are side by side."""
    kinds, (width, outputs) = len(targets), targets[0].shape
    if not all(bool(block.isfinite().all()) for block in (*blocks.values(), *targets)):
        raise torch.linalg.LinAlgError("not finite")  # type: ignore[attr-defined]
    mirrored = {(b, a): block.mT for (a, b), block in blocks.items()}
    system = _by_item(mirrored | dict(blocks), kinds, kinds) + diags_array(np.tile(penalties, width), format="csr")
    left = eliminate(system, _by_item({(a, 0): block for a, block in enumerate(targets)}, kinds, 1), kinds)
    lower = _factor(torch.from_numpy(left.system.toarray())) if len(left.places) else None
    found = targets[0].new_empty(kinds, width, outputs)
    for start in range(0, outputs, _COLUMNS):
        columns = slice(start, min(outputs, start + _COLUMNS))
        solution = np.zeros((kinds * width, columns.stop - start))
        if lower is not None:
            solution[left.places] = lapack.dpotrs(lower, left.target[:, columns].toarray(order="F"), lower=1)[0]
        left.complete(solution, columns)
        found[:, :, columns] = torch.from_numpy(solution).view(width, kinds, -1).transpose(0, 1)
    return found


def _by_item(blocks: Mapping[tuple[int, int], Tensor], rows: int, columns: int) -> csr_array:
    """The matrix whose row `i rows + a` and column `j columns + b` has the number (i, j) of block (a, b)."""
    height, width = blocks[0, 0].shape
    places = {pair: block.numpy().nonzero() for pair, block in blocks.items()}
    row = np.concatenate([i * rows + a for (a, _), (i, _) in places.items()])
    column = np.concatenate([j * columns + b for (_, b), (_, j) in places.items()])
    value = np.concatenate([blocks[pair].numpy()[place] for pair, place in places.items()], dtype=np.float64)
    return csr_array((value, (row, column)), shape=(height * rows, width * columns))


def inverse(system: Tensor) -> Tensor:
    """A^-1 of the symmetric `system` A [n, n] of 64-bit numbers, which is overwritten. Raises
    `torch.linalg.LinAlgError` where A is not positive definite."""
    if system.is_cuda:
        return torch.cholesky_inverse(torch.linalg.cholesky(system))
    system = system.contiguous()
    lower = _factor(system)
    lapack.dpotri(lower, lower=1, overwrite_c=1)
    for start in range(0, len(system), _BLOCK):  # LAPACK leaves one half as it was
        stop = start + _BLOCK
        system[start:stop, :start] = system[:start, start:stop].mT
        square = system[start:stop, start:stop].triu()
        system[start:stop, start:stop] = square + square.triu(1).mT
    return system


def _factor(system: Tensor) -> NDArray[np.float64]:
    """L of A = L L', in the memory of the contiguous A, as LAPACK has it: column by column."""
    lower: NDArray[np.float64]
    lower, failed = lapack.dpotrf(system.numpy().T, lower=1, overwrite_a=1, clean=0)
    if failed or not np.isfinite(lower.diagonal()).all():  # what is not a number may pass unnoticed
        raise torch.linalg.LinAlgError("not positive definite")  # type: ignore[attr-defined]
    return lower


def _solved(system: Tensor, transposed: Tensor) -> Tensor:
    """A^-1 Y of the symmetric `system` A [n, n] and the `transposed` Y [m, n], in the memory of the latter; both are
    overwritten. Matrices whose columns lie one after the other can be worked on in place, hence the transposing."""
    if not system.is_cuda:
        lapack.dpotrs(_factor(system), transposed.numpy().T, lower=1, overwrite_b=1)
        return transposed.mT
    lower, result = system.mT, transposed.mT
    torch.linalg.cholesky(lower, out=lower)
    torch.linalg.solve_triangular(lower, result, upper=False, out=result)
    torch.linalg.solve_triangular(lower.mT, result, upper=True, out=result)
    return result
