"""How much the dimensions of item rows repeat one another, for stacked devices, with its gradient in closed form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def redundancy(local: Tensor, server: Tensor, once: Tensor, gamma: float) -> Tensor:
    """How far the dimensions of local and server rows are from going together one by one, on each device."""
    share = (once / once.sum(1, keepdim=True))[:, :, None]
    value: Tensor = _Redundancy.apply(local, server, share, gamma)  # type: ignore[no-untyped-call]
    return value


class _Redundancy(torch.autograd.Function):
    """R = sum_k (1 - X_kk)^2 + gamma sum_{k != l} X_kl^2 and its gradient, several times faster than by autograd.

    With shares p_i of the items, centred rows c = l - sum_i p_i l_i, c' of the server's, and their scales s, s':
        X_kl = sum_i p_i c_ik c'_il / (s_k s'_l),      G = dR/dX:  G_kk = -2 (1 - X_kk),  G_kl = 2 gamma X_kl
    A row acts through the numerator and through s; through the mean it does not, since p_i c_i and p_i c'_i sum to 0:
        dR/dl_ik = p_i / s_k (sum_l G_kl c'_il / s'_l  -  c_ik / s_k sum_l G_kl X_kl)
    """

    @staticmethod
    def forward(ctx: Any, local: Tensor, server: Tensor, share: Tensor, gamma: float) -> Tensor:
        (rows, scale), (others, other_scale) = (_centred(values, share) for values in (local, server))
        correlation = (rows * share).mT @ others / (scale.mT * other_scale)
        own = correlation.diagonal(dim1=1, dim2=2)
        slope = 2 * gamma * correlation
        slope.diagonal(dim1=1, dim2=2).copy_(2 * own - 2)
        ctx.save_for_backward(rows, others, share, (slope / (scale.mT * other_scale)).mT)
        ctx.along = (slope * correlation).sum(2)[:, None] / scale.square()
        return (1 - own).square().sum(1) + gamma * (correlation.square().sum((1, 2)) - own.square().sum(1))

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        rows, others, share, slope = ctx.saved_tensors
        gradient = torch.baddbmm(rows * ctx.along, others, slope, beta=-1)
        return gradient.mul_(share * above[0][:, None, None]), None, None, None


def _centred(rows: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Rows less their mean, and the root of each dimension's variance [A, 1, dim]."""
    rows = rows - share.mT @ rows
    return rows, ((rows.square().mT @ share).mT + 1e-6).sqrt()
