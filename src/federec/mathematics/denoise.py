"""A symmetric matrix of sums from one with independent noise on each value.

    S = (G + G') / 2,  (G - G') / 2 is only noise: it tells the standard deviation s of the noise in S
    |eigenvalues of the noise| <= 2 s sqrt(n) (Wigner), so those of S beyond this edge are signal:
    lambda -> (lambda + sqrt(lambda^2 - edge^2)) / 2,  others -> 0, but for the largest one, which is hardly only noise

Noise that was added for privacy may be removed like any other: what is computed from released values costs nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_NONE = 1e-5
"""Antisymmetric parts below this fraction of the largest value come from rounding, not from noise."""


def noise_of(matrix: Tensor) -> float:
    """Standard deviation of the noise on a symmetric matrix, after it was made symmetric; 0 where there is none."""
    rest = (matrix - matrix.T) / 2
    n = len(matrix)
    if n < 2 or not float(rest.abs().max()) > _NONE * float(matrix.abs().max()):
        return 0.0
    return math.sqrt(float(rest.double().square().sum()) / (n * (n - 1)))


def denoised(matrix: Tensor, noise: float) -> Tensor:
    """The signal in a symmetric matrix, positive semidefinite, under noise of this standard deviation."""
    values, vectors = torch.linalg.eigh(matrix.double())
    edge = 2 * noise * math.sqrt(len(matrix))
    kept = values > edge
    kept[-1] = True
    values, vectors = values[kept].clamp(min=0), vectors[:, kept]
    shrunk = (values + (values.square() - edge**2).clamp(min=0).sqrt()) / 2
    found: Tensor = ((vectors * shrunk) @ vectors.T).to(matrix.dtype)
    return found
