"""What a report says of users and items beyond metrics, counted while the recommendation lists are at hand."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federec.evaluation.evaluator import Full

LISTED = 10
"""The length of a list that a user gets to see."""
_EXAMPLES = 5
_BLOCK = 2**22
"""Interactions that are counted at a time: counting needs 8 bytes for each."""


def report_counts(full: Full) -> dict[str, Tensor]:
    """`training items` [E]: of each evaluated user. `interactions` [n_items]: how often each item is in the training
    data. `recommended` [n_items]: how often it is among the ten first items of a user who has a test item.
    `examples` [X, 1 + 10]: codes of a few users, those with a short history first, and of their ten first items; -1 for
    no item."""
    split, test, n_items = full.of.split, full.of.parts[1], full.of.split.data.n_items
    users = full.of.users.cpu()
    trained = torch.from_numpy(np.diff(split.ptr))[users]
    lists = full.lists[:, :LISTED]
    listed = lists[test.rows]
    by_history = test.rows[trained[test.rows].argsort(stable=True)]
    places = [len(by_history) * (2 * number + 1) // (2 * _EXAMPLES) for number in range(_EXAMPLES)]
    rows = by_history[places].unique_consecutive() if len(by_history) else by_history
    return {
        "training items": trained,
        "interactions": torch.from_numpy(_occurrences(split.train, n_items)),
        "recommended": torch.bincount(listed[listed >= 0], minlength=n_items),
        "examples": torch.cat([users[rows, None], lists[rows]], 1),
    }


def _occurrences(items: NDArray[np.int32], n_items: int) -> NDArray[np.int64]:
    """How often each item occurs."""
    counts = np.zeros(n_items, np.int64)
    for first in range(0, len(items), _BLOCK):
        counts += np.bincount(items[first : first + _BLOCK], minlength=n_items)
    return counts
