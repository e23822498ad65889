"""CPU kernels rank held-out items, number for number as `evaluation.ranking` does."""

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


@exact
def _not_below(scores: Any, value: Any, known: Any, held: Any) -> Any:
    """How many scores are not lower than a value, but for those of known items that are not held out."""
    count = np.int32(0)
    for k in range(len(scores)):
        count += np.int32(not scores[k] < value)
    if not value > -np.inf:  # known items count as minus infinity
        return count
    for item in known:
        if not scores[item] < value:
            count -= np.int32(1)
            for own in held:
                count += np.int32(own == item)
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


@kernel
def rank_held_out(scores: Any, known: Any, known_ptr: Any, held: Any, held_ptr: Any, ranks: Any) -> None:
    """0-based ranks of held-out items of users, row by row, among all items but the known ones. What a user knows is
    between the two places of `known_ptr[row]`, an item once; what is held out is between two of `held_ptr`."""
    for row in range(len(scores)):
        own = held[held_ptr[row] : held_ptr[row + 1]]
        for place in range(held_ptr[row], held_ptr[row + 1]):
            value = scores[row, held[place]]
            ranks[place] = _not_below(scores[row], value, known[known_ptr[row, 0] : known_ptr[row, 1]], own) - 1
