"""Centralised models that learn from drawn samples, in mini-batches by Adam.

A round is one epoch over everybody's interactions. The negatives are those that the users' devices would have
drawn in that round, under the same protocol, so a difference to the federated method is the price of federation.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from federec import streams
from federec.cohort.draw import Devices, draw
from federec.cohort.layers import Param, Params
from federec.cohort.optim import Adam
from federec.data.split import Split
from federec.methods.central import CentralMethod

_CELLS = 4_000_000  # samples drawn at a time, padding included


class PooledMethod(CentralMethod):
    """Mini-batches of everybody's samples. Subclasses say which parameters there are and how a sample scores."""

    lr: NonNegativeFloat = 1e-3
    """Step of Adam."""
    batch: PositiveInt = 1024
    """Samples in a mini-batch."""
    negatives: NonNegativeInt = 4
    """Fresh negatives drawn for each positive, every round."""

    def user_params(self) -> dict[str, Param]:
        """Tables with a row for each user."""
        raise NotImplementedError(f"{type(self).__name__}.user_params")

    def item_params(self) -> dict[str, Param]:
        """Tables with a row for each item, and layers."""
        raise NotImplementedError(f"{type(self).__name__}.item_params")

    def score(self, p: Params, users: Tensor, items: Tensor) -> Tensor:
        """Logits [B] of user-item pairs."""
        raise NotImplementedError(f"{type(self).__name__}.score")

    def loss(self, p: Params, users: Tensor, items: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of a mini-batch."""
        return binary_cross_entropy_with_logits(self.score(p, users, items), labels)

    def start(self, split: Split, seed: int) -> Params:
        generator = torch.Generator().manual_seed(seed)
        tables = {name: param.start(split.data.n_users, generator) for name, param in self.user_params().items()}
        tables |= {name: param.start(split.data.n_items, generator) for name, param in self.item_params().items()}
        moments = {f"{name}/{k}": v for name, table in tables.items() for k, v in Adam.moments(table).items()}
        return tables | moments

    def learn(self, model: Params, split: Split, devices: Devices, seed: int, round_: int) -> Params:
        model = {name: value.clone() for name, value in model.items()}
        for batch in self.batches(devices, seed, round_):
            self.descend(model, batch)
        return model

    def batches(self, devices: Devices, seed: int, round_: int) -> Iterator[tuple[Tensor, ...]]:
        """Users, items and labels of the epoch's mini-batches: all devices' samples, shuffled together."""
        samples = [torch.cat(column) for column in zip(*self.draw(devices, seed, round_), strict=True)]
        key = samples.pop()
        order = key.argsort(stable=True)
        for part in order.split(self.batch):
            yield tuple(column[part] for column in samples)

    def draw(self, devices: Devices, seed: int, round_: int) -> Iterator[tuple[Tensor, ...]]:
        """Each positive and its negatives, some users at a time: users, items, labels, random keys."""
        lengths = devices.lengths(torch.arange(len(devices)), self.negatives)
        by_length = lengths.argsort(descending=True, stable=True)
        start = 0
        while start < len(by_length):
            some = by_length[start : start + max(1, _CELLS // max(1, int(lengths[by_length[start]])))]
            start += len(some)
            samples = draw(devices, some, seed, round_, self.negatives)
            position = torch.arange(samples.items.shape[1])
            real = position < samples.counts[:, None]
            key = streams.bits(samples.key[:, None], streams.SHUFFLE + position)
            yield some[:, None].expand_as(real)[real], samples.items[real], samples.labels[real], key[real]

    def descend(self, model: Params, batch: tuple[Tensor, ...]) -> None:
        """One step of Adam on all parameters, in place."""
        names = [name for name in model if "/" not in name]
        p = {name: model[name].requires_grad_() for name in names}
        gradients = torch.autograd.grad(self.loss(p, *batch), [p[name] for name in names])
        for name, gradient in zip(names, gradients, strict=True):
            m, v, t = (model[f"{name}/{part}"] for part in "mvt")
            model[name] = model[name].detach()
            Adam().step_(model[name], gradient, m, v, t, self.lr)
