"""PLGC - personalised local-global collaboration (arXiv 2508.19591) on any method with shared item rows.

The paper's equations were not at hand. From its abstract: the forward pass mixes local and global embeddings by a
weight that a neural-tangent-kernel rule sets, and a feature-wise contrastive loss keeps embedding dimensions from
depending on one another. What follows is one reading of that; `mix` and `beta` replace or remove its parts.

    e_ij = a_i l_ij + (1 - a_i) g_j         g_j: the server's row, frozen for the round;  l_ij: tuned, starts as g_j

The kernel of a linear last layer over features h is K(j, k) = h_j . h_k + 1, and with residuals r = sigma(score) - y on
the batch it removes the error at the speed
    s(K) = r'K r / (r'r tr K),     r'K r = |sum r_j h_j|^2 + (sum r_j)^2,     tr K = sum |h_j|^2 + 1
so that a_i = s_local / (s_local + s_global), its log-odds smoothed over steps and kept from round to round.

    loss(e) + beta R(l),     R = sum_k (1 - X_kk)^2 + gamma sum_{k != l} X_kl^2,     X = Z_l' Z_g / n
with Z_l, Z_g the local and global rows of the batch's n distinct items, each dimension standardised over them. The
method below sees only mixed rows; gradients reach the local ones: d loss / d l = a d loss / d e. R counts in steps of
item rows. With mix=fixed, mix_weight=1 and beta=0 nothing is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, NonNegativeFloat, model_validator
from torch import Tensor
from torch.linalg import vector_norm

from federec.cohort.cohort import Cohort, Step
from federec.cohort.layers import SERVER, Param, Params
from federec.errors import UserError
from federec.methods.base import DeviceMethod
from federec.methods.forms import AdditiveScore, Form, LinearScore, Mixing, NeuralScore
from federec.plugins.base import Plugin

ODDS = "plgc.odds"


class PLGC(Plugin):
    """Mix tuned and received item rows in the score; keep the dimensions of item rows from repeating one another.

    >>> (fr.FedMF() | fr.PLGC(beta=0.0)).beta
    0.0
    """

    plugin: ClassVar[str] = "plgc"

    mix: Literal["ntk", "fixed"] = "ntk"
    """What sets the weight of a device's own rows: the kernel rule, or `mix_weight`."""
    mix_weight: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Weight of a device's own rows where mix=fixed."""
    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """How much of a weight's log-odds is kept at each step where mix=ntk."""
    beta: NonNegativeFloat = 0.001
    """Weight of the redundancy loss; 0 leaves it out."""
    gamma: NonNegativeFloat = 0.1
    """Weight, within it, of the correlations between different dimensions."""

    @model_validator(mode="after")
    def _has_rows(self) -> Self:
        if isinstance(self, DeviceMethod) and not self.tables():  # by itself it holds only its settings
            raise UserError(f"plug-in 'plgc' does not fit '{self.name}': its devices share no item rows")
        return self

    @property
    def mixes(self) -> bool:
        return self.mix == "ntk" or self.mix_weight < 1

    def tables(self) -> list[str]:
        """The item tables that are mixed."""
        return [name for name, param in self.shared().items() if param.rows]

    def private(self) -> dict[str, Param]:
        return {**super().private(), **({ODDS: Param((), "zeros")} if self.mix == "ntk" else {})}

    def fuse(self, form: Form) -> Form | None:
        if not (self.mixes or self.beta):
            return form
        # No kernel weighs once for both steps of dual personalisation, takes gradients of mixed rows uphill, or mixes
        # rows of unlike weights or two tables.
        below = self.plugins[: self.plugins.index(PLGC.plugin)]
        if {"dualper", "sam", "recency"} & {*below} or not isinstance(form, LinearScore | AdditiveScore | NeuralScore):
            return None
        if isinstance(form, NeuralScore) and (form.gradients or len(form.tables) > 1):
            return None
        mixing = Mixing(ODDS if self.mix == "ntk" else None, self.mix_weight, self.smoothing, self.beta, self.gamma)
        return replace(form, mixing=mixing)

    def fit(self, cohort: Cohort) -> None:
        if self.mixes or self.beta:
            cohort.tables |= {name + SERVER: cohort.tables[name].clone() for name in self.tables()}
        super().fit(cohort)
        if self.mix == "ntk":
            cohort.notes["mixing weight"] = [cohort.params[ODDS].sigmoid()]

    def score(self, p: Params) -> Tensor:
        return super().score(self.mixed(p))

    def weight(self, p: Params) -> Tensor | float:
        """a of each device, to multiply rows with."""
        return p[ODDS].sigmoid()[:, None, None] if self.mix == "ntk" else self.mix_weight

    def mixed(self, p: Params) -> Params:
        """p with e = a l + (1 - a) g; where the server's new rows are ranked with, they are all there is."""
        both = [name for name in self.tables() if name + SERVER in p] if self.mixes else []
        rest = {name: value for name, value in p.items() if SERVER not in name}
        return rest | {name: p[name + SERVER].lerp(p[name], self.weight(p)) for name in both}

    def descend(self, step: Step, rates: Mapping[str, float | Tensor]) -> None:
        if self.mix == "ntk":
            self.weigh(step, rates)
        super().descend(step, {name: rate for name, rate in rates.items() if name != ODDS and SERVER not in name})

    def weigh(self, step: Step, rates: Mapping[str, float | Tensor]) -> None:
        """One step of the kernel rule on devices that still learn; r'r is the same for both kernels."""
        p, odds = step.values(), step.cohort.params[ODDS][: step.active]
        samples = step.weight * step.sizes[:, None]  # 1, or more where an item stands for several samples
        residual = (self.score(p).sigmoid() - step.labels) * samples
        received = p | {name: p[name + SERVER] for name in self.tables()}
        local, server = (_speed(self.features(rows), residual, samples).log() for rows in (p, received))
        learning = sum(torch.as_tensor(rate) for rate in rates.values()) > 0
        odds.lerp_(local - server, (1 - self.smoothing) * torch.as_tensor(learning, device=odds.device))

    def derive(self, p: Params, step: Step, names: Sequence[str]) -> tuple[Tensor, Params]:
        loss, gradient = super().derive(self.mixed(p), step, names)
        for name in (table for table in self.tables() if table in names):
            if self.mixes:
                gradient[name] = gradient[name] * self.weight(p)
            if self.beta:
                value, slope = redundancy(p[name], p[name + SERVER], _once(step), self.gamma)
                loss, gradient[name] = loss + self.beta * value, gradient[name] + self.beta * slope
        return loss, gradient


def _speed(features: Tensor, residual: Tensor, samples: Tensor) -> Tensor:
    """r'K r / tr K on each device."""
    sizes: Tensor = vector_norm(features, dim=2)
    removed = (residual[:, None] @ features).square().sum((1, 2)) + residual.sum(1).square()
    return removed.clamp(min=1e-12) / ((sizes.square_() + 1) * samples).sum(1)


def _once(step: Step) -> Tensor:
    """[A, B] weights that count each distinct item of a device's batch once."""
    real = (step.weight > 0).float()
    if step.distinct:
        return real
    times = real.new_zeros(len(step.cohort.rows)).scatter_add_(0, step.slots.flatten(), real.flatten())
    return real / times[step.slots].clamp_(min=1)


def redundancy(local: Tensor, server: Tensor, once: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """How far the dimensions of local and server rows are from going together one by one, on each device [A], and the
    gradient of that in local rows. `once` [A, B] counts each distinct item once, padding not at all.

    R = sum_k (1 - X_kk)^2 + gamma sum_{k != l} X_kl^2
    With shares p_i of the items, centred rows c = l - sum_i p_i l_i, c' of the server's, and their scales s, s':
        X_kl = sum_i p_i c_ik c'_il / (s_k s'_l),      G = dR/dX:  G_kk = -2 (1 - X_kk),  G_kl = 2 gamma X_kl
    A row acts through the numerator and through s; through the mean it does not, since p_i c_i and p_i c'_i sum to 0:
        dR/dl_ik = p_i / s_k (sum_l G_kl c'_il / s'_l  -  c_ik / s_k sum_l G_kl X_kl)
    """
    share = (once / once.sum(1, keepdim=True))[:, :, None]
    (rows, scale), (others, other_scale) = (_centred(values, share) for values in (local, server))
    scales = scale.mT * other_scale
    correlation = (rows * share).mT @ others / scales
    own = correlation.diagonal(dim1=1, dim2=2)
    slope = 2 * gamma * correlation
    slope.diagonal(dim1=1, dim2=2).copy_(2 * own - 2)
    along = (slope * correlation).sum(2)[:, None] / scale.square()
    value = (1 - own).square().sum(1) + gamma * (correlation.square().sum((1, 2)) - own.square().sum(1))
    return value, torch.baddbmm(rows.mul_(along), others, (slope / scales).mT, beta=-1).mul_(share)


def _centred(rows: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Rows less their mean, and the root of each dimension's variance [A, 1, dim]."""
    rows = rows - share.mT @ rows
    return rows, (share.mT @ rows.square() + 1e-6).sqrt()
