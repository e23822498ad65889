"""FedRAP - Federated Recommendation with Additive Personalization (Li, Long, Zhou, ICLR 2024).

    r_ij = sigma(u_i . (d_ij + c_j) + b_i)      u_i, b_i, D_i: private, kept for good;  C: shared
    min  sum_i [ BCE_i - v1 s(a) mean (D_i - C)^2 ] + v2 s(a) mean |C|       a = round - 1
    s(a) = tanh(a / 10)  or  (1 + sin(a / 10)) / 2  or  a square wave, 5 rounds on, 5 off  or  1 / (a + 1)  or  1

Each round a device takes C and steps u_i, D_i and C together, for up to ten passes or until its loss settles; it sends
the change of C and the server adds the mean. A device ranks with the new C and its own D_i.

As in the authors' code regularisers are means over the batch's rows, and the loss that must settle is the mean since
the round began. There the schedule never reaches the loss: `schedule=fixed` repeats that. The term in D_i - C has no
lower bound: with a large v1 (0.1, the default there) training diverges. Weight decay acts in every batch on the rows
the device holds in the round, positives and drawn negatives; other rows are neither fetched nor sent, and stay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from federec.cohort.layers import Param, Params, item_rows, mlp, mlp_params
from federec.lazy import torch
from federec.methods.base import DeviceMethod
from federec.methods.forms import AdditiveScore, Form

if TYPE_CHECKING:
    from torch import Tensor

    from federec.cohort.cohort import Cohort, Step


class FedRAP(DeviceMethod):
    """Additive personalisation: shared item rows plus each device's own, pushed apart; the shared ones sparse.

    >>> sorted(fr.FedRAP(dim=8).private())
    ['own', 'score.0.bias', 'score.0.weight']
    """

    name: ClassVar[str] = "fedrap"
    paper: ClassVar[str] = "Li et al., Federated Recommendation with Additive Personalization, ICLR 2024"

    dim: PositiveInt = 32
    """Width of an item row."""
    parts: Literal["both", "common", "own"] = "both"
    """Item rows in the score: C and D_i, or, as ablations, only C or only D_i."""
    lr: NonNegativeFloat = 1e-4
    """Step of the private score layer u_i, b_i."""
    item_lr: NonNegativeFloat = 1000.0
    """Step of the rows of C and D_i: large, because the server divides by the number of devices."""
    own_lr_factor: NonNegativeFloat = 1.0
    """Step of D_i as a multiple of item_lr; 1 in the paper. Less lets what all devices agree on settle in C."""
    v1: NonNegativeFloat = 1e-3
    """Weight of the term that pushes D_i and C apart; 0 leaves it out."""
    v2: NonNegativeFloat = 1e-3
    """Weight of the norm of C; 0 leaves it out."""
    norm: Literal["l1", "l2", "nuclear"] = "l1"
    """Norm of C: mean |c|, or, as ablations, mean c^2 or the nuclear norm of the batch's rows over their number."""
    schedule: Literal["tanh", "sin", "square", "frac", "fixed"] = "tanh"
    """s(a): how v1 and v2 come in over the rounds."""
    weight_decay: NonNegativeFloat = 1e-6
    """Added to each gradient, times the parameter."""
    step_decay: Annotated[float, Field(gt=0, le=1)] = 0.95
    """A device's steps shrink by this after each batch; they start afresh each round."""
    round_decay: Annotated[float, Field(gt=0, le=1)] = 0.97
    """All steps shrink by this after each round."""
    tolerance: NonNegativeFloat = 1e-4
    """A device stops early when its mean loss since the round began changes by less than this share in a pass."""
    batch: PositiveInt = 2048
    """Samples in a device's batch."""
    epochs: PositiveInt = 10
    """Most passes of a device over its samples in a round."""

    def shared(self) -> dict[str, Param]:
        return {"common": item_rows(self.dim)} if self.parts != "own" else {}

    def private(self) -> dict[str, Param]:
        return mlp_params("score", (self.dim, 1)) | ({"own": item_rows(self.dim)} if self.parts != "common" else {})

    def features(self, p: Params) -> Tensor:
        return p["common"] + p["own"] if self.parts == "both" else p[self.parts]

    def score(self, p: Params) -> Tensor:
        return mlp(p, "score", self.features(p))

    def weights(self, round_: int) -> tuple[float, float]:
        """v1 s(a) and v2 s(a); a regulariser of a table that is not there weighs nothing."""
        a = round_ - 1
        on = {"sin": (1 + math.sin(a / 10)) / 2, "square": 1.0 - a // 5 % 2, "frac": 1 / (a + 1), "fixed": 1.0}
        s = on.get(self.schedule, math.tanh(a / 10))
        return self.v1 * s * (self.parts == "both"), self.v2 * s * (self.parts != "own")

    def fused_form(self, n_items: int) -> Form | None:
        steps = self.item_lr, self.item_lr * self.own_lr_factor
        if self.norm == "nuclear" or max(steps) * self.weight_decay > 0.5:
            return None
        return AdditiveScore(
            common="common" if self.parts != "own" else None,
            own="own" if self.parts != "common" else None,
            weight="score.0.weight",
            bias="score.0.bias",
            rates=(self.lr, *steps),
            regularisers=self.weights,
            squared=self.norm == "l2",
            **self.model_dump(include={"weight_decay", "step_decay", "round_decay", "tolerance"}),
        )

    def fit(self, cohort: Cohort) -> None:
        pace = torch.full((len(cohort),), self.round_decay ** (cohort.round - 1), device=cohort.users.device)
        going, total, last = torch.ones_like(pace), torch.zeros_like(pace), torch.zeros_like(pace)
        for epoch, steps in enumerate(cohort.passes(self.batch, self.epochs)):
            if not going.any():
                continue
            for step in steps:
                known, learning = len(cohort.losses), going[: step.active] > 0
                self.descend(step, self.rates(step, (pace * going)[: step.active]))
                pace[: step.active] *= self.step_decay
                total[: step.active] += cohort.losses[-1] * step.sizes
                cohort.losses[known:] = [loss[learning] for loss in cohort.losses[known:]]  # of those that still learn
            mean = total / ((epoch + 1) * cohort.samples.counts)
            if epoch:
                going *= (mean - last).abs() >= self.tolerance * last.abs()
            last = mean

    def rates(self, step: Step, pace: Tensor) -> dict[str, float | Tensor]:
        """The step of each parameter on each device."""
        size = {"common": self.item_lr, "own": self.item_lr * self.own_lr_factor}
        return {name: pace * size.get(name, self.lr) for name in (*step.cohort.params, *step.cohort.tables)}

    def descend(self, step: Step, rates: Mapping[str, float | Tensor]) -> None:
        for name, gradient in self.gradient(step, tuple(rates)).items():
            step.shrink(name, 1 - torch.as_tensor(rates[name]) * self.weight_decay)
            step.move(name, gradient, rates[name])

    def loss(self, p: Params, step: Step) -> Tensor:
        (away, small), loss = self.weights(step.cohort.round), super().loss(p, step)
        if away:
            loss = loss - away * ((p["own"] - p["common"]).square().mean(2) * step.weight).sum(1)
        return loss + small * self.size(p["common"], step.weight) if small else loss

    def size(self, rows: Tensor, weight: Tensor) -> Tensor:
        """The norm of each device's rows [A, B, dim]."""
        if self.norm == "nuclear":  # the sum of singular values, from those of a dim x dim matrix
            squares: Tensor = torch.linalg.eigvalsh((rows * weight[:, :, None]).mT @ rows)
            return (squares.clamp(min=0) + 1e-6).sqrt().mean(1)
        return ((rows.abs() if self.norm == "l1" else rows.square()).mean(2) * weight).sum(1)

    def derive(self, p: Params, step: Step, names: Sequence[str]) -> tuple[Tensor, Params]:
        if self.parts != "both" or self.norm == "nuclear":
            return super().derive(p, step, names)
        parts, squared = ("common", "own", "score.0.weight", "score.0.bias"), self.norm == "l2"
        values, regularisers = [p[name] for name in parts], self.weights(step.cohort.round)
        loss, found = additive(values, step.labels, step.weight, *regularisers, squared)
        return loss, {name: found[parts.index(name)] for name in names}


def additive(
    parts: Sequence[Tensor], labels: Tensor, shares: Tensor, away: float, small: float, squared: bool
) -> tuple[Tensor, list[Tensor]]:
    """Loss [A] and its gradients in the parts c, d [A, B, dim], u [A, dim, 1] and b [A, 1].

    With shares q_j of the samples in the mean, errors e_j = q_j (sigma(s_j) - y_j) and N(c) = |c|, or c^2 if `squared`:
        L = sum_j q_j (BCE_j - away mean (d_j - c_j)^2 + small mean N(c_j))
        dL/dc_j = e_j u + q_j (2 away (d_j - c_j) + small N'(c_j)) / dim
        dL/dd_j = e_j u - q_j 2 away (d_j - c_j) / dim
    """
    common, own, weight, bias = parts
    rows, apart, share = common + own, own - common, (shares / common.shape[2])[:, :, None]
    score = (rows * weight.mT).sum(2) + bias
    error = (score.sigmoid() - labels) * shares
    size = common.square() if squared else common.abs()
    terms = small * size.mean(2) - away / common.shape[2] * torch.linalg.vector_norm(apart, dim=2).square_()
    loss = ((torch.nn.functional.softplus(score) - labels * score + terms) * shares).sum(1)
    pulled = error[:, :, None] * weight.mT  # by the cross-entropy: the same on both tables
    pushed = apart.mul_(2 * away * share)
    sparse = common * (2 * small * share) if squared else common.sign().mul_(small * share)
    of_common, of_own = sparse.add_(pulled).add_(pushed), pulled.sub_(pushed)
    return loss, [of_common, of_own, (error[:, None] @ rows).mT, error.sum(1, keepdim=True)]
