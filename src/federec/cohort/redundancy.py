"""How much the dimensions of item rows repeat one another, for stacked devices, and the gradient of that."""

from __future__ import annotations

import torch
from torch import Tensor


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
