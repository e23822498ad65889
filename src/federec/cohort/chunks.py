"""Cutting many devices into cohorts: devices of similar length together, within a memory budget."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PADDING = 0.15
"""Fraction of a cohort's sample table that may be padding."""
GPU_PADDING = 0.7
"""The same on a GPU, where a launch costs more than it computes: a few large cohorts are faster."""


def plan(
    lengths: NDArray[np.int64],
    bytes_per_sample: float,
    bytes_per_device: float,
    budget: float,
    padding: float = PADDING,
) -> list[slice]:
    """Slices of devices sorted by falling `lengths`, each a cohort.

    A cohort ends where padding to its longest device would exceed that fraction, or its tables the budget.
    """
    total = np.concatenate([[0], np.cumsum(lengths)])
    slices, start = [], 0
    while start < len(lengths):
        longest = int(lengths[start])
        most = max(1, int(budget / (longest * bytes_per_sample + bytes_per_device)))
        stop = min(len(lengths), start + most)
        sizes = np.arange(1, stop - start + 1)
        filled = total[start + 1 : stop + 1] - total[start]
        # Lengths fall, so the filled fraction falls with every device added.
        fits = int(np.count_nonzero(filled >= (1 - padding) * longest * sizes))
        slices.append(slice(start, start + max(1, fits)))
        start = slices[-1].stop
    return slices
