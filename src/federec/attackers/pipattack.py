"""PipAttack - Poisoning Federated Recommender Systems for Manipulating Item Promotion (Zhang et al., WSDM 2022).

Two goals at once: explicit promotion (see `promote`), and popularity: a classifier learns from item rows which items
are popular, and the targets' rows move to where it believes that they are.

    direction of v_t = unit(d/dv_t sum_a log sigma(s_a(v_t))) + unit(d/dv_t log sigma(w . v_t + b))

The paper's classifier is a network with several levels of popularity; this one is a logistic regression that tells the
most popular tenth from the rest. The paper's bound on the distance to an honest update is that of all attacks here.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from federec.attackers.base import Attack, Scene, only, unit
from federec.attackers.promote import promotion
from federec.cohort.layers import Params

_STEPS = 8
"""Of Newton's method."""
_RIDGE = 1.0


class PipAttack(Attack):
    """Explicit promotion, disguised as popularity."""

    name: ClassVar[str] = "pipattack"
    paper: ClassVar[str] = "Zhang et al., PipAttack, WSDM 2022"

    popularity: bool = True
    """Whether attackers know how popular items are; otherwise they count in their own histories."""

    def plan(self, scene: Scene) -> Params | None:
        devices = scene.devices
        known = devices.distinct if self.popularity else _of(scene)
        counts = torch.bincount(known, minlength=devices.n_items)
        popular = torch.zeros(devices.n_items, device=counts.device)
        popular[counts.argsort(descending=True, stable=True)[: max(1, devices.n_items // 10)]] = 1.0
        rows = torch.cat([scene.shared[name] for name in scene.tables], 1)
        weight = _classifier(rows, popular)
        parts = weight.split([scene.shared[name].shape[1] for name in scene.tables])
        align = {name: part.expand_as(scene.shared[name]) for name, part in zip(scene.tables, parts, strict=True)}
        explicit, align = unit(promotion(scene)), unit(only(align, scene.targets))
        return {name: explicit[name] + align[name] for name in scene.tables}


def _of(scene: Scene) -> Tensor:
    """The items of the attackers' own histories."""
    history = scene.devices.history(scene.users)
    return history.items[history.real]


def _classifier(rows: Tensor, labels: Tensor) -> Tensor:
    """The weights of a logistic regression, without its bias: by Newton's method, with a ridge."""
    x = torch.cat([rows, rows.new_ones(len(rows), 1)], 1).double()
    weight = x.new_zeros(x.shape[1])
    ridge = _RIDGE * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    for _ in range(_STEPS):
        chance = (x @ weight).sigmoid()
        slope = x.T @ (chance - labels) + ridge @ weight
        curve = (x * (chance * (1 - chance))[:, None]).T @ x + ridge
        weight = weight - torch.linalg.solve(curve, slope)
    return weight[:-1].to(rows.dtype)
