"""Rounds and scores of methods that need few rows of large products: a kernel takes these, torch does the rest."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from federec.cohort.draw import Devices
from federec.cohort.update import Update
from federec.federation.device import Learned, learn
from federec.federation.fused_base import Floats, RoundInputs
from federec.federation.scoring import score_global
from federec.federation.server import RoundReport, Sum, receive, server_random, settle
from federec.federation.state import State
from federec.federation.threads import in_threads, threads
from federec.kernels.lanes import LINE
from federec.kernels.sampled import Pairs, make_thread, sampled_pull, sampled_rows, sort_pairs
from federec.mathematics.sampled import Pulled, Whole, using
from federec.methods.base import DeviceMethod
from federec.methods.forms import SampledProducts

_ROWS = 1 << 21
"""Rows of updates that the server takes in at once: each time it writes a whole gradient."""

_DENSE = 0.8
"""Share of all pairs from which all products cost less than those of the pairs."""

_USERS = 256
"""Users who score at a time."""


class Sampled:
    """`mathematics.sampled.Products` by the kernels, for one weight."""

    def __init__(self) -> None:
        self._turned: Tensor | None = None

    def turned(self, weight: Tensor) -> Floats:
        """F as the kernels want it, [M, r, H], made once."""
        if self._turned is None:
            filled = _filled(_filled(weight, 2, 4), 0, LINE)
            self._turned = filled.flatten(1).T.contiguous().view(*filled.shape[1:], len(filled))
        found: Floats = self._turned.numpy()
        return found

    def rows(self, hidden: Tensor, weight: Tensor, bias: Tensor, owner: Tensor, ids: Tensor) -> Tensor:
        if len(ids) > _DENSE * len(hidden) * len(bias):
            return Whole().rows(hidden, weight, bias, owner, ids)
        pairs, out = _sorted(owner, ids, len(bias)), torch.empty(len(ids), bias.shape[1])
        turned, count = self.turned(weight), threads()
        given = (_filled(hidden.detach(), 1, LINE).contiguous().numpy(), turned, bias.numpy(), out.numpy())
        in_threads(count, lambda one: sampled_rows(make_thread(one, count, turned.shape[1]), pairs, *given))
        return out

    def pull(self, hidden: Tensor, weight: Tensor, owner: Tensor, ids: Tensor, gradient: Tensor) -> Pulled:
        pairs, count = _sorted(owner, ids, weight.shape[1]), threads()
        of_weight, of_bias = torch.empty_like(weight), torch.zeros(weight.shape[1:])
        along = _filled(gradient.index_select(0, torch.from_numpy(pairs.order)), 1, 4)
        pairs = pairs._replace(owner=pairs.owner[pairs.order])
        lines = _filled(hidden, 1, LINE).unflatten(1, (-1, LINE)).transpose(0, 1).contiguous()
        of_lines = torch.zeros(count, *lines.shape)
        turned = self.turned(weight)
        given = (lines.numpy(), turned, along.numpy(), of_weight.numpy(), of_bias.numpy())

        def pull(one: int) -> None:
            sampled_pull(make_thread(one, count, turned.shape[1]), pairs, *given, of_lines[one].numpy())

        in_threads(count, pull)
        of_hidden = of_lines.sum(0) if count > 1 else of_lines[0]
        return Pulled(of_weight, of_bias, of_hidden.transpose(0, 1).flatten(1)[:, : hidden.shape[1]])


def _filled(values: Tensor, dim: int, multiple: int) -> Tensor:
    """Filled up by zeros along a dimension to a multiple. Where nothing is missing the tensor itself: `pad` would copy
    it."""
    missing = -values.shape[dim] % multiple
    after = values.dim() - 1 - dim
    return torch.nn.functional.pad(values, (0, 0) * after + (0, missing)) if missing else values


def _sorted(owner: Tensor, ids: Tensor, n_items: int) -> Pairs:
    pairs = Pairs(np.zeros(n_items + 1, np.int64), np.empty(len(ids), np.int64), owner.contiguous().numpy())
    sort_pairs(ids.contiguous().numpy(), pairs)
    return pairs


class ProductsRound:
    """A round of such a method. Devices rank when it is over: `play` scores nothing."""

    rank = None

    def __init__(self, form: SampledProducts, inputs: RoundInputs) -> None:
        self.inputs, self.products = inputs, Sampled()
        self.aggregator = inputs.link.begin(inputs.devices.n_items)
        self.learned = Learned()
        self.updates: list[tuple[Tensor, Update]] = []
        """Updates that the server has not taken in yet, and whose they are."""

    def play(self, users: Tensor, ask: Tensor, judges: Tensor | None = None) -> Tensor:
        method, state, devices, seed, round_, link = self.inputs
        if not len(users):
            self._warm_up()
        channel = link.channel.now(state.server) if link.channel.stages else link.channel
        with using(self.products):
            new = learn(method, state, devices, users, seed, round_, channel, self._deliver)
        self.learned = self.learned.with_more(new)
        return torch.zeros(ask.shape)

    def _warm_up(self) -> None:
        """Compile the kernels, or load them."""
        hidden, weight, none = torch.zeros(1, 4), torch.zeros(4, 1, 1), torch.zeros(0, dtype=torch.int64)
        Sampled().rows(hidden, weight, weight[0], none, none)
        Sampled().pull(hidden, weight, none, none, torch.zeros(0, 1))

    def _deliver(self, update: Update, users: Tensor) -> None:
        self.updates.append((users, update))
        if sum(len(update.ids) for _, update in self.updates) > _ROWS:
            self._take_in()

    def _take_in(self) -> None:
        """The server takes in all updates at once."""
        users, updates = zip(*self.updates, strict=True)
        self.updates = []
        with using(self.products):
            receive(self.inputs.method, self.inputs.state, self.aggregator, _joined(updates), torch.cat(users))

    def finish(self, sum_: Sum = list) -> RoundReport:
        """The server settles the round."""
        method, state, devices, seed, round_, link = self.inputs
        if self.updates:
            self._take_in()
        random = server_random(seed, round_, devices)
        return settle(method, state, self.aggregator, link, self.learned, random, sum_)


def _joined(updates: tuple[Update, ...]) -> Update:
    """The updates of several cohorts as those of one."""
    first = updates[0]
    return Update(
        n_items=first.n_items,
        ids=torch.cat([update.ids for update in updates]),
        counts=torch.cat([update.counts for update in updates]),
        rows={name: torch.cat([update.rows[name] for update in updates]) for name in first.rows},
        layers={name: torch.cat([update.layers[name] for update in updates]) for name in first.layers},
    )


def products_scores(
    form: SampledProducts, method: DeviceMethod, state: State, devices: Devices, users: Tensor, items: Tensor
) -> Tensor:
    """Scores [C, K] of items [C, K] with the server's rows."""
    if not len(users):
        return torch.zeros(items.shape)
    with using(Sampled()):
        parts = zip(users.split(_USERS), items.split(_USERS), strict=True)
        return torch.cat([score_global(method, state, some, asked, devices) for some, asked in parts])
