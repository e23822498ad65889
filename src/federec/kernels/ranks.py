"""CPU kernels rank a held-out item among a few others, number for number as `evaluation.ranking` does."""

from __future__ import annotations

from typing import Any

import numpy as np

from federec.kernels.compiling import exact, jit, kernel


@exact  # elsewhere the compiler may assume that there is nothing that is not a number
def _beaten(scores: Any) -> Any:
    """How many scores are lower than the first."""
    first, count = scores[0], np.int32(0)
    for k in range(len(scores)):
        count += np.int32(scores[k] < first)
    return count


@jit
def rank_lists(scores: Any, ranks: Any) -> None:
    """0-based ranks of the first score of each list among those of the list; lists follow each other."""
    size = len(scores) // max(1, len(ranks))
    for number in range(len(ranks)):
        ranks[number] = size - 1 - _beaten(scores[number * size : (number + 1) * size])


@kernel
def rank_first(scores: Any, ranks: Any) -> None:
    """0-based ranks of the first columns of scores [E, K] among all columns."""
    for row in range(len(scores)):
        rank_lists(scores[row], ranks[row : row + 1])
