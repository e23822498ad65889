"""FCF - Federated Collaborative Filtering (Ammad-ud-din et al., 2019).

    J = sum_ij c_ij (x_ij - p_i . v_j)^2 + l2 (|P|^2 + |V|^2)       c_ij = 1 + alpha x_ij

A device solves for its vector p_i in closed form, as in ALS, and sends the items' gradients; the server steps all item
rows by Adam. Every device has a say on every item,
    dJ/dv_j = -2 sum_i c_ij (x_ij - p_i . v_j) p_i + 2 l2 v_j
but where x_ij = 0 that is 2 p_i p_i' v_j, and the server knows v_j. So, exactly and cheaply, a device sends p_i p_i'
once (its symmetric half) and, for each item of its own history, what comes on top:
    dJ/dv_j = 2 (sum_i p_i p_i') v_j - 2 sum_{i: j in i} (1 + alpha - alpha p_i . v_j) p_i + 2 l2 v_j
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveFloat

from federec.cohort.cohort import Cohort
from federec.cohort.layers import Param, Params
from federec.cohort.optim import Adam
from federec.methods.fedals import FedALS, fold, unfold


class FCF(FedALS):
    """Weighted matrix factorisation: devices solve for user vectors, the server steps item rows by Adam.

    >>> fr.train(fr.FCF(dim=8), data, rounds=1).method.name
    'fcf'
    """

    name: ClassVar[str] = "fcf"
    paper: ClassVar[str] = (
        "Ammad-ud-din et al., Federated Collaborative Filtering for Privacy-Preserving Personalized Recommendation "
        "System, arXiv 1901.09888, 2019"
    )
    default_rounds: ClassVar[int] = 100

    lr: PositiveFloat = 0.1
    """Step of the server's Adam; chosen on validation, as `alpha` and `l2` are."""

    def sends(self) -> dict[str, Param]:
        return {"all": Param((self.half,)), "extra": Param((self.dim,), rows=True)}

    def message(self, cohort: Cohort, shared: Params) -> Params:
        user = cohort.params["user"]
        own = user[cohort.rows.owner]
        agreed = (own * cohort.tables["items"]).sum(1, keepdim=True)
        return {"all": fold(user[:, :, None] * user[:, None, :]), "extra": (1 + self.alpha - self.alpha * agreed) * own}

    def server_start(self, shared: Params) -> Params:
        return Adam.moments(shared["items"])

    def server_step(self, shared: Params, mean: Params, memory: Params) -> Params:
        items = shared["items"].clone()
        gradient = 2 * (items @ unfold(mean["all"], self.dim) - mean["extra"] + self.l2 * items)
        Adam().step_(items, gradient, memory["m"], memory["v"], memory["t"], self.lr)
        return {"items": items}
