"""The loss of an additive score u . (c_j + d_j) + b and its gradient in closed form, for stacked devices."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import softplus


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
    terms = small * size.mean(2) - away / common.shape[2] * vector_norm(apart, dim=2).square_()
    loss = ((softplus(score) - labels * score + terms) * shares).sum(1)
    pulled = error[:, :, None] * weight.mT  # by the cross-entropy: the same on both tables
    pushed = apart.mul_(2 * away * share)
    sparse = common * (2 * small * share) if squared else common.sign().mul_(small * share)
    of_common, of_own = sparse.add_(pulled).add_(pushed), pulled.sub_(pushed)
    return loss, [of_common, of_own, (error[:, None] @ rows).mT, error.sum(1, keepdim=True)]
