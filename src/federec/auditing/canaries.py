"""Canaries: devices whose update the server knows beforehand, put in or left out by the toss of a coin.

A canary's update is as large as the channel lets it be, and lies in coordinates of the item tables that belong to no
other canary, with random signs. So thousands of canaries fit into one run without touching each other (Steinke et al.
2023). The attack on canary c looks for it in everything that the server saw:

    score(c) = sum over rounds of <seen - its main directions, c> / |c|^2

Real users all push popular items one way, so the main singular directions of a sum are theirs, and are taken out.

* Sums: the canaries' updates are clipped as those of real devices are, and added to the sums of the run as the noise of
  the real devices or of the server left them. A canary is in or out.
* Single messages: each canary is a device of its own, which sends its update or the opposite one through all stages:
  a message hides which of any two updates it came from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federec.auditing.epsilon import DELTA, best_guesses, gaussian_fit, gaussian_mu, guessed, lower_bound
from federec.auditing.measures import Interval
from federec.auditing.replay import Federation
from federec.cohort.layers import Params
from federec.cohort.update import Update
from federec.federation.channel import Channel
from federec.stages.clip import Clip
from federec.stages.randomness import Simulated

LOUD = 10.0
"""How many times the clipping norm a canary is, before it is clipped."""
MAIN = 2
"""Main directions of a sum that real users share."""
FEWEST = 200
"""Canaries that are sent whatever it takes."""
VALUES = 2e8
"""Values of all canaries' own messages that are made at most: minutes of noise."""
_TOGETHER = 1 << 23  # values of messages that are made together


@dataclass(frozen=True)
class Canaries:
    """Updates with disjoint coordinates in one item table, and which of them are in."""

    name: str
    """Of the item table."""
    owner: Tensor
    """[n_items * width] the canary of each coordinate; -1: of none."""
    sign: Tensor
    """[n_items * width] +1 or -1."""
    shape: tuple[int, int]
    inside: NDArray[np.bool_]

    @staticmethod
    def fit(federation: Federation) -> bool:
        """Whether messages have item tables, where canaries lie."""
        return any(param.rows for param in federation.method.sends().values())

    @staticmethod
    def drawn(federation: Federation, count: int, rounds: int) -> Canaries:
        """`count` canaries, or as many as there are coordinates for, each in with probability 1/2; fewer where each of
        them sends messages of its own in so many rounds."""
        tables = {name: param for name, param in federation.method.sends().items() if param.rows}
        n_items = federation.devices.n_items
        sizes = {name: param.sized(n_items)[0] for name, param in tables.items()}
        name = max(sizes, key=lambda each: sizes[each])
        generator = torch.Generator().manual_seed(federation.seed)
        coordinates = n_items * sizes[name]
        count = min(count, coordinates // 2)
        if not federation.in_sums:
            count = min(count, max(FEWEST, int(VALUES / (coordinates * rounds))))
        each = coordinates // count
        order = torch.randperm(coordinates, generator=generator)
        owner = torch.full((coordinates,), -1)
        owner[order[: each * count]] = torch.arange(count).repeat_interleave(each)
        sign = torch.randint(0, 2, (coordinates,), generator=generator).float() * 2 - 1
        inside = torch.rand(count, generator=generator) < 0.5
        return Canaries(name, owner, sign, (n_items, sizes[name]), inside.numpy())

    def __len__(self) -> int:
        return len(self.inside)

    def update(self, some: Tensor, size: float) -> Update:
        """The updates of some canaries, by their numbers in rising order, of this norm."""
        n_items, width = self.shape
        place = torch.full((len(self) + 1,), -1)
        place[some] = torch.arange(len(some))
        at = (place[self.owner] >= 0).nonzero().flatten()  # an owner of -1 is the last place, which is of none
        device = place[self.owner[at]]
        pair = device * n_items + at // width
        rows, index = pair.unique(return_inverse=True)
        values = torch.zeros(len(rows), width)
        each = torch.bincount(device, minlength=len(some)).float()
        values[index, at % width] = self.sign[at] * size / each[device].sqrt()
        counts = torch.bincount(rows // n_items, minlength=len(some))
        return Update(n_items, rows % n_items, counts, {self.name: values}, {})

    def looked_for(self, table: Tensor) -> NDArray[np.float64]:
        """<table, c> over the number of its coordinates, for each canary c."""
        mine = self.owner >= 0
        values = (table.reshape(-1).double() * self.sign)[mine]
        sums = torch.zeros(len(self), dtype=torch.float64).index_add_(0, self.owner[mine], values)
        return (sums / torch.bincount(self.owner[mine], minlength=len(self))).numpy()


class Empirical(NamedTuple):
    """What canaries say of epsilon."""

    canaries: int
    guesses: int
    right: int
    least: float
    """Epsilon is at least that, with 95 % confidence."""
    fit: Interval
    """Epsilon if scores are normal, with its 95 % interval."""


class Listening:
    """Adds canaries to what a server sees, round by round, and looks for them."""

    def __init__(self, federation: Federation, canaries: Canaries) -> None:
        self.federation, self.canaries = federation, canaries
        self.scores = np.zeros(len(canaries))
        self.coins = torch.Generator().manual_seed(federation.seed + 1)

    def hear_sum(self, round_: int, channel: Channel, used: Params) -> None:
        """A sum as the server uses it, to which the canaries that are in and take part are added."""
        if self.canaries.name not in used:  # nothing was sent
            return
        inside = torch.from_numpy(np.flatnonzero(self.canaries.inside))
        some = inside[torch.rand(len(inside), generator=self.coins) < self.federation.trainer.participation]
        clip = channel.promise.clip or 1.0
        bounds = Channel(tuple(stage for stage in channel.stages if stage.name == Clip.name))
        sent, _ = bounds.device(self.canaries.update(some, LOUD * clip), self._random(round_, some))
        table = used[self.canaries.name].flatten(1).clone()
        table.index_add_(0, sent.ids, sent.rows[self.canaries.name])
        self.scores += self.canaries.looked_for(without_main(table)) / clip  # noise is in proportion to the norm

    def hear_messages(self, round_: int, channel: Channel) -> None:
        """Each canary's own message."""
        size, norm = max(1, _TOGETHER // math.prod(self.canaries.shape)), LOUD * (channel.promise.clip or 1.0)
        for some in torch.arange(len(self.canaries)).split(size):
            update = self.canaries.update(some, norm)
            sign = torch.from_numpy(np.where(self.canaries.inside[some.numpy()], 1.0, -1.0)).float()
            values = {name: rows * sign[update.owner, None] for name, rows in update.rows.items()}
            self._hear(some, channel.device(update.with_values(values), self._random(round_, some))[0])

    def _random(self, round_: int, some: Tensor) -> Simulated:
        """Of the canaries' own devices, which are none of the run's."""
        return Simulated.of(self.federation.seed, round_, len(self.federation.devices) + some)

    def _hear(self, some: Tensor, sent: Update) -> None:
        rows, ends = sent.rows[self.canaries.name], sent.counts.cumsum(0).tolist()
        width = self.canaries.shape[1]
        for place, canary in enumerate(some.tolist()):
            part = slice(ends[place] - int(sent.counts[place]), ends[place])
            at = (self.canaries.owner == canary).nonzero().flatten()
            table = torch.zeros(self.canaries.shape)
            table[sent.ids[part]] = rows[part]
            self.scores[canary] += float((table[at // width, at % width] * self.canaries.sign[at]).mean())

    def found(self, promised: float, delta: float) -> Empirical:
        """What the guesses say. How many are made depends only on what is promised."""
        count, inside = len(self.canaries), self.canaries.inside
        some = delta or DELTA  # normal noise has no epsilon at delta 0
        guesses = best_guesses(count, gaussian_mu(max(promised, 1e-2), some), delta)
        right = guessed(self.scores, inside, guesses)
        least = lower_bound(count, guesses, right, delta)
        return Empirical(count, guesses, right, least, gaussian_fit(self.scores, inside, some))


def without_main(table: Tensor) -> Tensor:
    """A table without its main singular directions; of a narrow one fewer are taken out."""
    wide = table.shape[1] > table.shape[0]
    tall = (table.T if wide else table).double()
    count = min(MAIN, tall.shape[1] // 8)
    main = torch.linalg.eigh(tall.T @ tall).eigenvectors[:, tall.shape[1] - count :]
    rest: Tensor = tall - (tall @ main) @ main.T
    return rest.T if wide else rest
