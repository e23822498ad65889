"""Popularity: the same list for everybody, items by their number of training interactions."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from federec.cohort.layers import Params
from federec.data.split import Split
from federec.methods.central import CentralMethod


class Popularity(CentralMethod):
    """Control: rank items by how often they were interacted with.

    >>> fr.train(fr.Popularity(), data).method.name
    'popularity'
    """

    name: ClassVar[str] = "popularity"
    paper: ClassVar[str] = "control"

    @property
    def most_rounds(self) -> int:
        return 1

    def refine(self, model: Params, split: Split, round_: int) -> Params:
        counts = np.bincount(split.train, minlength=split.data.n_items)
        return {"counts": torch.from_numpy(counts).float()}

    def scores(self, model: Params, split: Split, users: Tensor) -> Tensor:
        return model["counts"].repeat(len(users), 1)
