"""Graph attention over a device's own graph: its user, the user's items, and other users who have these items.

att(x; N) = sum_{y in N + x} a_xy y W,    a_xy = softmax_y LeakyReLU(a . x W + a' . y W)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding, leaky_relu

from federec.cohort.draw import History
from federec.cohort.layers import dot

_USERS = 32  # attended to at a time


def attend(
    layers: tuple[Tensor, ...], user: Tensor, items: Tensor, peers: Tensor, there: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention along peers [C, L, K, d] -> items [C, L, d] -> user [C, d], with the layers W, a, a' of each device;
    `there` [C, L, 1 + K] marks the items and peers that are no padding.

    Returns h W' [C, d], where h is what the user's node becomes, so that h W' . v = h . v W for any item row v; the
    share of each node in h; and how much of h . v W is its own where v is that item. Both [C, 1 + L], user first: 0.
    """
    w, start, end = layers
    z, u = items @ w, user[:, None] @ w
    # a' . n W = (W a') . n, and a sum of n W is the sum of n times W: peers are never multiplied by W one by one.
    near = (peers * (w @ end[:, :, None]).mT[:, :, None]).sum(3)
    around = torch.cat([dot(end, z)[:, :, None], near], 2) + dot(start, z)[:, :, None]
    a = leaky_relu(around, 0.2).masked_fill(~there, -1e9).softmax(2)
    e = a[:, :, :1] * z + (a[:, :, 1:, None] * peers).sum(2) @ w
    nodes = torch.cat([u, e], 1)
    real = torch.cat([there.new_ones(len(there), 1), there[:, :, 0]], 1)
    b = leaky_relu(dot(start, u) + dot(end, nodes), 0.2).masked_fill(~real, -1e9).softmax(1)
    share = torch.cat([torch.zeros_like(b[:, :1]), b[:, 1:]], 1)
    return (b[:, None] @ nodes @ w.mT)[:, 0], share, share * (nodes * torch.cat([u, z], 1)).sum(2)


def surroundings(history: History, vectors: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """`peers` and `there` of devices: the vectors of up to `most` other users at each item."""
    peers = history.peers(most)
    return embedding(peers.clamp(min=0), vectors), torch.cat([history.real[:, :, None], peers >= 0], 2)


def tastes(layers: tuple[Tensor, ...], vectors: Tensor, rows: Tensor, history: History, most: int) -> Tensor:
    """h W' of each device from shared layers, all users' vectors and the item table; like lengths together."""
    found = vectors[history.users]
    for part in history.counts.argsort().split(_USERS):
        some = history.everyone.history(history.users[part])
        own = tuple(layer.expand(len(part), *layer.shape) for layer in layers)
        around = surroundings(some, vectors, most)
        found[part] = attend(own, found[part], embedding(some.items, rows), *around)[0]
    return found


def mean(counts: Tensor, each: Tensor) -> Tensor:
    """[C] means of the first `counts[c]` values of each row [C, S]."""
    real = torch.arange(each.shape[1], device=each.device) < counts[:, None]
    return each.where(real, 0.0).sum(1) / counts
