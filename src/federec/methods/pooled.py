"""Centralised models that learn from drawn samples, in mini-batches by Adam.

A round is one epoch over everybody's interactions. The negatives are those that the users' devices would have
drawn in that round, under the same protocol, so a difference to the federated method is the price of federation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from federec import streams
from federec.cohort.chunks import GPU_PADDING, PADDING, plan
from federec.cohort.draw import Devices, draw
from federec.cohort.layers import Param, Params
from federec.cohort.optim import Adam, WholeAdam
from federec.cohort.recorded import Recorded
from federec.data.split import Split
from federec.methods.central import CentralMethod

_CELLS, _GPU_CELLS = 1 << 18, 1 << 22  # samples drawn at a time, padding included


class PooledMethod(CentralMethod):
    """Mini-batches of everybody's samples. Subclasses say which parameters there are and how a sample scores."""

    recorded: ClassVar[bool] = False
    """Whether `gradient` depends on nothing but tensors and never waits for a GPU, which then repeats a recording."""

    pairwise: ClassVar[bool] = False
    """Whether scoring all items for everybody takes longer than an epoch. Then, as on devices, candidates are scored
    pair by pair in each round, and all items for some users in some rounds."""

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
        return self.epoch(model, devices, seed, round_)

    def epoch(self, model: Params, devices: Devices, seed: int, round_: int, *given: Tensor) -> Params:
        """The model after a step of Adam for each mini-batch; `gradient` gets what is given, and then the batch."""
        model = {name: value.clone() for name, value in model.items()}
        adam = WholeAdam(model, self.lr)
        params = {name: model[name] for name in adam.names}

        def step(*batch: Tensor) -> None:
            adam.step(self.gradient(params, *given, *batch))

        steps = Recorded(step) if self.recorded and devices.ptr.is_cuda else step
        for batch in self.batches(devices, seed, round_):
            steps(*batch)
        adam.close()
        return model

    def batches(self, devices: Devices, seed: int, round_: int) -> Iterator[tuple[Tensor, ...]]:
        """Users, items and labels of the epoch's mini-batches: all devices' samples, shuffled together."""
        samples = [torch.cat(column) for column in zip(*self.draw(devices, seed, round_), strict=True)]
        order = samples.pop().argsort(stable=True)
        yield from zip(*(column.index_select(0, order).split(self.batch) for column in samples), strict=True)

    def draw(self, devices: Devices, seed: int, round_: int) -> Iterator[tuple[Tensor, ...]]:
        """Each positive and its negatives, some users at a time: users, items, labels, random keys."""
        lengths = devices.lengths(torch.arange(len(devices)), self.negatives).cpu().numpy()
        order = np.argsort(-lengths, kind="stable")
        by_length = torch.from_numpy(order).to(devices.ptr.device)
        cells, padding = (_GPU_CELLS, GPU_PADDING) if devices.ptr.is_cuda else (_CELLS, PADDING)
        for part in plan(lengths[order], 1, 1, cells, padding):
            some = by_length[part]
            samples = draw(devices, some, seed, round_, self.negatives)
            position = torch.arange(samples.items.shape[1])
            real = (position < samples.counts[:, None]).flatten().nonzero().squeeze(1)
            key = streams.bits(samples.key[:, None], streams.SHUFFLE + position)
            columns = some[:, None].expand_as(key), samples.items, samples.labels, key
            yield tuple(column.flatten().index_select(0, real) for column in columns)

    def gradient(self, p: Params, *batch: Tensor) -> Params:
        """The gradient of a mini-batch's loss: by autograd here. A method may know it in closed form."""
        p = {name: value.detach().requires_grad_() for name, value in p.items()}
        return dict(zip(p, torch.autograd.grad(self.loss(p, *batch), [*p.values()]), strict=True))
