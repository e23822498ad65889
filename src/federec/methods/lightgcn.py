"""LightGCN - Simplifying and Powering Graph Convolution Network for Recommendation (He et al., SIGIR 2020).

    E^(l+1) = D^-1/2 A D^-1/2 E^(l)              A: the graph of users and items that interacted;  E^(0): learned
    E = (E^(0) + ... + E^(L)) / (L + 1),         score_ij = e_i . e_j
    loss = - mean ln sigma(score_ij - score_ik) + l2 / 2 (|e_i^(0)|^2 + |e_j^(0)|^2 + |e_k^(0)|^2)      (BPR)

j is one of the user's items, k one of the negatives drawn for it. E = P E^(0) with a symmetric P, so the gradient with
respect to E^(0) is P times that with respect to E: no graph of the propagation is kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag

from federec.cohort.draw import Devices
from federec.cohort.layers import Param, Params
from federec.data.split import Split
from federec.methods.pooled import PooledMethod


class LightGCN(PooledMethod):
    """Centralised reference: embeddings smoothed over the graph of users and items.

    >>> fr.LightGCN(dim=8).dim
    8
    """

    name: ClassVar[str] = "lightgcn"
    paper: ClassVar[str] = "He et al., LightGCN: Simplifying and Powering Graph Convolution Network, SIGIR 2020"

    dim: PositiveInt = 64
    """Width of users' and items' embeddings."""
    layers: PositiveInt = 3
    """Propagations over the graph (L)."""
    l2: NonNegativeFloat = 1e-4
    """Penalty on the embeddings of a mini-batch."""
    lr: NonNegativeFloat = 0.01
    """Step of Adam; ten times the paper's, for mini-batches eight times as large."""
    batch: PositiveInt = 16384
    """Pairs of an item and a negative in a mini-batch."""

    def user_params(self) -> dict[str, Param]:
        return {"users": Param((self.dim,), scale=0.1, rows=True)}

    def item_params(self) -> dict[str, Param]:
        return {"items": Param((self.dim,), scale=0.1, rows=True)}

    def draw(self, devices: Devices, seed: int, round_: int) -> Iterator[tuple[Tensor, ...]]:
        """Pairs of a user's item and a negative drawn for it: users, items, negatives, random keys."""
        for users, items, labels, key in super().draw(devices, seed, round_):
            negative = (labels == 0).nonzero().squeeze(1)
            taken = (labels > 0).cumsum(0) - 1  # each item comes before its negatives
            yield users[negative], items[labels > 0][taken[negative]], items[negative], key[negative]

    def learn(self, model: Params, split: Split, devices: Devices, seed: int, round_: int) -> Params:
        graph = adjacency(split).to(model["users"].device)
        model = self.epoch(model, devices, seed, round_, graph)
        model["users/smooth"], model["items/smooth"] = self.smooth(graph, model["users"], model["items"])
        return model

    def smooth(self, graph: Tensor, users: Tensor, items: Tensor) -> tuple[Tensor, ...]:
        """E from E^(0); and, P being symmetric, the gradient with respect to E^(0) from that with respect to E."""
        layer = total = torch.cat([users, items])
        for _ in range(self.layers):
            layer = of_neighbours(graph, layer)
            total = total + layer
        total /= self.layers + 1
        return total[: len(users)], total[len(users) :]

    def gradient(self, p: Params, *batch: Tensor) -> Params:
        graph, users, items, negatives = batch
        smooth = self.smooth(graph, p["users"], p["items"])
        mine = embedding(users, smooth[0])
        apart = embedding(items, smooth[1]).sub_(embedding(negatives, smooth[1]))
        slope = (mine * apart).sum(1, keepdim=True).neg_().sigmoid_().div_(-len(users))  # of softplus(-margin)
        pulled = mine.mul_(slope)
        onto_users = torch.zeros_like(smooth[0]).index_add_(0, users, apart.mul_(slope))
        onto_items = torch.zeros_like(smooth[1]).index_add_(0, items, pulled).index_add_(0, negatives, pulled, alpha=-1)
        found = self.smooth(graph, onto_users, onto_items)
        counted = users, torch.cat([items, negatives])
        for gradient, name, drawn in zip(found, ("users", "items"), counted, strict=True):
            share = torch.bincount(drawn, minlength=len(gradient))[:, None] / len(users)
            gradient.addcmul_(share, p[name], value=self.l2)
        return {"users": found[0], "items": found[1]}

    def scores(self, model: Params, split: Split, users: Tensor) -> Tensor:
        return model["users/smooth"][users] @ model["items/smooth"].T


def of_neighbours(graph: Tensor, rows: Tensor) -> Tensor:
    """The product of the graph and some rows. On a CPU torch adds up bags of rows 2.7 times as fast as it multiplies by
    a sparse matrix."""
    if rows.is_cuda:
        return graph @ rows
    ends, starts, weight = graph.col_indices(), graph.crow_indices(), graph.values()
    return embedding_bag(ends, rows, starts, mode="sum", per_sample_weights=weight, include_last_offset=True)


def adjacency(split: Split) -> Tensor:
    """D^-1/2 A D^-1/2 over users, then items, as a sparse matrix."""
    n_users, n_items = split.data.n_users, split.data.n_items
    ptr, train, *_ = split.distinct  # a pair that the data repeats is one edge
    owner = np.repeat(np.arange(n_users), np.diff(ptr))
    of_users = np.sort(owner * n_items + train) % n_items + n_users
    of_items = owner[np.argsort(train, kind="stable")]
    degree = np.concatenate([np.diff(ptr), np.bincount(train, minlength=n_items)])
    starts, ends = (
        torch.from_numpy(array.astype(np.int32))
        for array in (np.concatenate([[0], np.cumsum(degree)]), np.concatenate([of_users, of_items]))
    )
    edges = torch.from_numpy(degree).float()
    weight = (edges.repeat_interleave(torch.from_numpy(degree)) * edges[ends]).rsqrt()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls this form "beta"; products with it are five times faster
        return torch.sparse_csr_tensor(starts, ends, weight, (len(degree), len(degree)), check_invariants=True)
