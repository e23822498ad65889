"""CPU kernel that ranks a held-out item among a few others, number for number as `evaluation.ranking` does."""

from __future__ import annotations

from typing import Any

import numpy as np

from federec.kernels.compiling import exact, kernel


@exact  # elsewhere the compiler may assume that there is nothing that is not a number
def _beaten(scores: Any) -> Any:
    """How many scores are lower than the first."""
    first, count = scores[0], np.int32(0)
    for k in range(len(scores)):
        count += np.int32(scores[k] < first)
    return count


@kernel
def rank_first(scores: Any, ranks: Any) -> None:
    """0-based ranks of the first columns of scores [E, K] among all columns."""
    for row in range(len(scores)):
        ranks[row] = scores.shape[1] - 1 - _beaten(scores[row])
