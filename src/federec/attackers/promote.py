"""Explicit promotion: attackers push the targets' rows to where their own users would like them.

direction of v_t = d/dv_t sum_a log sigma(s_a(v_t))           s_a: attacker a's score;  other rows are not sent
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn.functional import logsigmoid

from federec.attackers.base import Attack, Scene, only
from federec.cohort.layers import Params


class Promote(Attack):
    """Explicit promotion of the targets."""

    name: ClassVar[str] = "promote"

    def plan(self, scene: Scene) -> Params | None:
        return promotion(scene)


def promotion(scene: Scene) -> Params:
    """The direction in which all attackers like the targets better."""

    def liked(scores: Tensor) -> Tensor:
        return logsigmoid(scores).sum()

    return only(scene.ascent(scene.score, liked, scene.targets), scene.targets)
