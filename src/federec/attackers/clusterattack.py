"""ClusterAttack - Untargeted Attack against Federated Recommendation Systems via Poisonous Item Embeddings and the
Defense (Yu et al., AAAI 2023).

    minimise   sum_j |v_j - c(j)|^2            c(j): the centre of item j's cluster, by k-means over all rows

Items of a cluster become alike, so that nobody can tell them apart. Every row is pushed by the same length. The paper
adapts the number of clusters to how well the attack goes; here it is fixed.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from federec import streams
from federec.attackers.base import Attack, Scene
from federec.cohort.layers import Params

_STEPS = 10
"""Of k-means."""


class ClusterAttack(Attack):
    """Item rows are drawn together in a few clusters."""

    name: ClassVar[str] = "clusterattack"
    paper: ClassVar[str] = "Yu et al., Untargeted Attack against Federated Recommendation Systems, AAAI 2023"

    clusters: Annotated[int, Field(ge=1)] = 5
    """How many."""

    def plan(self, scene: Scene) -> Params | None:
        rows = torch.cat([scene.shared[name] for name in scene.tables], 1)
        key = streams.bits(streams.keys(scene.seed, scene.round, scene.everything), streams.ATTACK)
        pull = normalize(_centres(rows, rows[key.argsort()[: self.clusters]]) - rows, dim=1)
        widths = [scene.shared[name].shape[1] for name in scene.tables]
        return dict(zip(scene.tables, pull.split(widths, 1), strict=True))


def _centres(rows: Tensor, centres: Tensor) -> Tensor:
    """The centre of each row's cluster."""
    for _ in range(_STEPS):
        nearest = torch.cdist(rows, centres).argmin(1)
        count = torch.bincount(nearest, minlength=len(centres))[:, None]
        total = torch.zeros_like(centres).index_add_(0, nearest, rows)
        centres = torch.where(count > 0, total / count.clamp(min=1), centres)
    return centres[torch.cdist(rows, centres).argmin(1)]
