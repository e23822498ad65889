"""FedAttack - Effective and Covert Poisoning Attack on Federated Recommendation via Hard Sampling (Wu et al., 2022).

Attackers learn honestly from the hardest samples: the items that they score lowest are their positives, those that they
score highest their negatives. Untargeted: it makes everybody's recommendations worse.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from federec.attackers.base import Attack, Scene, forged, histories
from federec.cohort.draw import Devices


class FedAttack(Attack):
    """Training on the hardest samples."""

    name: ClassVar[str] = "fedattack"
    paper: ClassVar[str] = "Wu et al., FedAttack, arXiv 2202.04975, 2022"

    def forge(self, scene: Scene) -> Devices:
        with torch.no_grad():
            scores = scene.score(scene.shared, scene.everything)
        count = histories(scene.devices, scene.users).sum(1, keepdim=True).clamp(max=scores.shape[1] // 2)
        rank = scores.argsort(dim=1, stable=True).argsort(1)
        return forged(scene.devices, scene.users, rank < count.clamp(min=1), rank >= scores.shape[1] - count)
