"""Exposure of items: how often they are recommended to users who do not have them.

    ER@K = users who do not have the item and have it among their first K  /  users who do not have it

Several items are pooled: both counts are summed over them. A user has the items of training, validation and test.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from federec.evaluation.evaluator import Full
from federec.evaluation.metrics import Metrics

_CUTS = (5, 10)


def exposure(full: Full, counted: Tensor, items: Tensor) -> Metrics:
    """ER@5 and ER@10 of these items, pooled, over the evaluated users that are counted: a mask of all users."""
    data, users = full.of.split.data, full.of.users.cpu()
    n_items, chosen = data.n_items, counted.cpu()[users].numpy()
    row = np.full(data.n_users, -1)
    row[users.numpy()[chosen]] = np.arange(int(chosen.sum()))
    owned = np.unique(row[data.users].astype(np.int64) * n_items + data.items)
    owned = owned[owned >= 0]
    asked = np.zeros(n_items, bool)
    asked[items.cpu().numpy()] = True
    possible = int(chosen.sum()) * int(asked.sum()) - int(asked[owned % n_items].sum())
    lists = full.lists[torch.from_numpy(chosen)].numpy()
    found: Metrics = {}
    for k in _CUTS:
        place, column = np.nonzero(lists[:, :k] >= 0)
        listed = lists[place, column]
        new = asked[listed] & ~np.isin(place * n_items + listed, owned, assume_unique=True)
        found[f"er@{k}"] = int(new.sum()) / max(1, possible)
    return found
