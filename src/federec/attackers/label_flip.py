"""Label flip: attackers claim to like items that they do not have; their negatives are those that they have."""

from __future__ import annotations

from typing import ClassVar

import torch

from federec import streams
from federec.attackers.base import Attack, Scene, forged, histories
from federec.cohort.draw import Devices


class LabelFlip(Attack):
    """Training on flipped labels."""

    name: ClassVar[str] = "label-flip"

    def forge(self, scene: Scene) -> Devices:
        mine = histories(scene.devices, scene.users)
        key = streams.keys(scene.seed, scene.round, scene.devices.numbered(scene.users))[:, None]
        draw = streams.unit(streams.bits(key, streams.ATTACK + scene.everything)).float()
        rank = draw.masked_fill(mine, 2.0).argsort(1).argsort(1)
        liked = (rank < mine.sum(1, keepdim=True)) & ~mine
        # One item at least, also of a user that has all of them.
        liked |= (rank == 0) & ~liked.any(1, keepdim=True)
        return forged(scene.devices, scene.users, liked, torch.as_tensor(mine))
