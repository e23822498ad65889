"""FedRecAttack - Model Poisoning Attack to Federated Recommendation (Rong et al., ICDE 2022).

Attackers know a small part of everybody's interactions, which are public. From these they imagine all users' private
parameters, and then push what decides over the users' lists:

    minimise   sum_u sum_t g(s_u(v_k) - s_u(v_t))       v_k: the last of u's first ten;   g(x) = x, or e^x - 1 below 0

Each attacker sends the rows with the largest gradients. Users are imagined by letting them learn, from the public
interactions, what a device learns in a round; they begin with the mean of the attackers' private parameters.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.nn.functional import elu

from federec import streams
from federec.attackers.base import Attack, Scene, forged, histories, only
from federec.cohort.draw import Devices
from federec.cohort.layers import Params

_USERS = 1 << 10
"""The most users that are imagined, those with the smallest numbers."""
_LIST = 10


class FedRecAttack(Attack):
    """Promotion against the lists of imagined users."""

    name: ClassVar[str] = "fedrecattack"
    paper: ClassVar[str] = "Rong et al., FedRecAttack, ICDE 2022"

    known: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Fraction of all interactions that are public."""
    rows: PositiveInt = 60
    """Rows that an attacker sends."""

    def plan(self, scene: Scene) -> Params | None:
        public, users = self.public(scene)
        if not len(users):
            return None
        score = scene.imagine(public, users)
        with torch.no_grad():
            scores = score(scene.shared, scene.everything)
        scores[histories(public, users)] = -torch.inf
        scores[:, scene.targets] = -torch.inf
        last = scores.topk(min(_LIST, scores.shape[1]), 1).indices[:, -1]
        targets = scene.targets
        asked, place = torch.cat([targets, last]).unique(return_inverse=True)

        def gain(scores: Tensor) -> Tensor:
            mine = scores[:, place[: len(targets)]]
            bar = scores.gather(1, place[len(targets) :, None])
            return -elu(bar - mine).sum()

        ascent = scene.ascent(score, gain, asked)
        size = torch.stack([rows.square().sum(1) for rows in ascent.values()]).sum(0)
        size[targets] = torch.inf
        return only(ascent, size.topk(min(self.rows, len(size))).indices)

    def public(self, scene: Scene) -> tuple[Devices, Tensor]:
        """The interactions that are public, and the users who have some."""
        everybody = scene.devices.ptr.diff().nonzero().flatten()[:_USERS]
        mine = histories(scene.devices, everybody)
        key = streams.keys(scene.seed, streams.ONCE, scene.devices.numbered(everybody))[:, None]
        shown = streams.unit(streams.bits(key, streams.ATTACK + 2 + scene.everything)) < self.known
        public = mine & shown
        some = public.any(1)
        return forged(scene.devices, everybody[some], public[some], ~public[some]), everybody[some]
