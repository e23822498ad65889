"""What all rounds that a CPU kernel plays have in common: threads share the users, changes are summed."""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from federec.cohort.draw import Devices
from federec.cohort.layers import Params
from federec.cohort.store import RowStore
from federec.federation.channel import Link
from federec.federation.device import Learned
from federec.federation.server import RoundReport, Sum, server_random, settle
from federec.federation.state import State
from federec.federation.threads import aside, deal, give_back, in_slices, lend, one_torch_thread, threads
from federec.kernels.cpu import Emphasis, Histories, Noise, Outcome, Players, floats, make_noise
from federec.kernels.ranks import rank_first, rank_held_out
from federec.methods import forms
from federec.methods.base import LOSS, DeviceMethod
from federec.stages.base import Format

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Ranker = Callable[[Tensor, Tensor, int], Tensor]
"""Has users learn, and returns the ranks [C, lists] of the first of each list of items: `ask` [C, K] has these lists
side by side."""

_PARTS = 7  # that a thread takes, if all threads are equally fast
_BYTES = 1 << 28  # that the sums of all parts may take, if there are more parts than threads
_TAKEN = 1 << 15  # values of a sum that are worth a thread
_RANKED = 1 << 10  # lists of scores that are


class RoundInputs(NamedTuple):
    """What a round is a function of."""

    method: DeviceMethod
    state: State
    devices: Devices
    seed: int
    round: int
    link: Link


class Turn(NamedTuple):
    """In which order users play. It depends on who they are, not on the round."""

    users: Tensor
    places: Tensor
    """Where each was before."""
    lengths: Tensor
    """Samples of each."""
    ptr: Integers
    """Where each part begins."""


_TURNS: MutableMapping[Tensor, tuple[Devices, tuple[int, int, int, int], Turn]] = WeakTensorKeyDictionary()


class Sums:
    """What the devices of a round send and lose, summed."""

    def __init__(self, devices: Devices, shape: tuple[int, ...], values: int, least: float) -> None:
        """`shape` is that of the item rows which are sent, [M, dim], `values` the size of all layers, `least` that of
        the round."""
        self.devices, self.threads, self.least = devices, threads(), int(least * shape[0])
        self.most = (
            1
            if self.threads == 1
            else max(1, min(_PARTS, _BYTES // (4 * self.threads * (math.prod(shape) + values + 1))))
        )
        """Parts for each thread."""
        self.shapes = [(self.threads * self.most, *size) for size in (shape, (values,))]
        self.rows, self.layers = (lend(devices, floats, *size) for size in self.shapes)
        self.loss = np.zeros((self.threads * self.most, 8))

    def turn(self, users: Tensor, negatives: int) -> Turn:
        """How these users are dealt to threads, in parts with a sum for each; kept as long as the tensor is."""
        made_for = negatives, self.threads, self.least, self.most
        known = _TURNS.get(users)
        if known is None or known[0] is not self.devices or known[1] != made_for:
            lengths = self.devices.lengths(users, negatives)
            order = lengths.argsort(descending=True, stable=True)
            dealt = deal(lengths[order].numpy(), self.threads, self.least, self.most)
            order = order[torch.from_numpy(dealt.order)]
            known = self.devices, made_for, Turn(users[order], order, lengths[order], dealt.ptr)
            _TURNS[users] = known
        return known[2]

    def close(self) -> tuple[Tensor, Tensor]:
        """The sums of item rows [M, dim] and layers [values] over all devices."""
        sums = []
        for parts, size in zip((self.rows, self.layers), self.shapes, strict=True):
            first = parts[0].reshape(-1)
            taken = np.empty_like(first)

            def take(some: slice, first: Floats = first, taken: Floats = taken) -> None:
                taken[some] = first[some]
                first[some] = 0

            in_slices(len(first), take, _TAKEN)
            sums.append(torch.from_numpy(taken.reshape(size[1:])))
            give_back(self.devices, parts, floats, *size)
        return sums[0], sums[1]


class FusedRound:
    """One round, a few users at a time. A subclass drives the kernel of one form."""

    layers: tuple[str, ...] = ()
    """Shared layers that devices change."""
    scores = False
    """Whether the kernel writes every score that is asked for; otherwise those that it leaves out are 0."""
    rank: Ranker | None = None
    """Where threads rank their devices themselves."""
    least = 2.0
    """Samples in a part for each row of its sums, if there are more parts than threads: sums cost time too."""

    def __init__(self, inputs: RoundInputs, *shape: int, values: int = 0) -> None:
        """`shape` is that of the item rows which devices change, [M, dim], `values` the size of all layers."""
        self.method, self.state, self.devices, self.seed, self.round, self.link = inputs
        self.sums = Sums(self.devices, shape, values, self.least)
        self.sent: list[Integers] = []
        self.users: list[Tensor] = []
        """Who has played."""

    def play(self, users: Tensor, ask: Tensor, judges: Tensor | None = None) -> Tensor:
        """These users learn; returns the scores of the items `ask` [C, K], each with the user's own rows, by its own
        weights or those of `judges` [C, values]."""
        scored = (np.empty if self.scores else np.zeros)(ask.shape, np.float32)
        self._play(users, ask, judges, scored, 0)
        return torch.from_numpy(scored)

    def _play(self, users: Tensor, ask: Tensor, judges: Tensor | None, scored: Floats, lists: int) -> Tensor:
        """The same, with scores in memory that is given; returns the ranks [C, lists] that the kernel finds."""
        turn = self.sums.turn(users, self.method.negatives)
        players = Players(
            users=turn.users.numpy(),
            keys=self.devices.keys(self.seed, self.round, turn.users).numpy().view(np.uint64),
            places=turn.places.numpy(),
            ask=ask.contiguous().numpy(),
            judges=np.zeros((0, 0), np.float32) if judges is None else judges.numpy(),
        )
        sent = np.zeros((len(users), 3 + len(self.layers)), np.int64)
        ranks = np.zeros((len(users), lists), np.int32)
        self.learn(players, turn.ptr, Outcome(scored, sent, self.sums.rows, self.sums.layers, self.sums.loss, ranks))
        self.sent.append(sent)
        self.users.append(users)
        return torch.from_numpy(ranks)

    def learn(self, players: Players, ptr: Integers, outcome: Outcome) -> None:
        """Run the kernel in all threads. `ptr`: where parts of the players begin."""
        raise NotImplementedError(f"{type(self).__name__}.learn")

    def most(self) -> int:
        """The most samples that a device draws."""
        return self.devices.longest * (1 + self.method.negatives)

    def reserve(self, store: RowStore, users: Integers) -> None:
        """Make space in a store for all rows that the users will touch."""
        chosen, n_items = torch.from_numpy(users), self.devices.n_items
        drawn = store.held[chosen] + self.devices.lengths(chosen, self.method.negatives)
        store.reserve(chosen, drawn.clamp(max=n_items))

    def change(self) -> Params:
        """The devices' changes of shared item rows and layers, summed."""
        raise NotImplementedError(f"{type(self).__name__}.change")

    def notes(self) -> Params:
        """Figures besides the loss: each one's sum over devices, and their number."""
        return {}

    def traffic(self, total: Params) -> tuple[Tensor, Tensor]:
        """Bytes that each device sends and fetches; `total` is the sum of what they send."""
        n_items, format_ = self.devices.n_items, self.link.channel.format
        held, rows, values, *layers = torch.from_numpy(np.concatenate(self.sent)).unbind(1)
        width = sum(total[name].shape[1] for name in total if name not in self.layers)
        up, down = format_.changes(rows, values, width, n_items), fetched(held, width, n_items, format_)
        for filled, name in zip(layers, self.layers, strict=True):
            size = total[name].numel()
            whole = Format().layer(filled.new_full((1,), size), size)  # every device fetches all of it
            up, down = up + format_.layer(filled, size), down + whole
        return up, down

    def finish(self, sum_: Sum = list) -> RoundReport:
        """The server settles the round."""
        with one_torch_thread():
            return self._finish(sum_)

    def _finish(self, sum_: Sum) -> RoundReport:
        n_items, total = self.devices.n_items, self.change()
        up, down = self.traffic(total)
        figures = {LOSS: torch.from_numpy(self.sums.loss.sum(0)[:2]), **self.notes()}
        learned = Learned(int(up.sum()), int(down.sum()), figures)
        aggregator = self.link.aggregator(n_items)
        aggregator.merge(total, len(up))
        random = server_random(self.seed, self.round, self.devices)
        return settle(self.method, self.state, aggregator, self.link, learned, random, sum_, begin=aside)


def held_out_ranks(devices: Devices, scores: Tensor, users: Tensor, held_out: tuple[Tensor, Tensor]) -> Tensor:
    """`evaluation.ranking.validation_ranks` of users of these devices; no score is overwritten."""
    row, items = (part.numpy() for part in held_out)
    values, begin = scores.contiguous().numpy(), np.searchsorted(row, np.arange(len(scores) + 1))
    known_ptr = torch.stack([devices.distinct_ptr[users], devices.distinct_ptr[users + 1]], 1).numpy()
    known, ranks = devices.distinct.numpy(), np.empty(len(items), np.int64)

    def rank(some: slice) -> None:
        rank_held_out(values[some], known, known_ptr[some], items, begin[some.start : some.stop + 1], ranks)

    in_slices(len(values), rank, 1 + 100 * _RANKED // devices.n_items)
    return torch.from_numpy(ranks)


def first_ranks(scores: Tensor) -> Tensor:
    """`evaluation.ranking.sampled_ranks` where all candidates count."""
    values, ranks = scores.contiguous().numpy(), np.empty(len(scores), np.int32)
    in_slices(len(ranks), lambda some: rank_first(values[some], ranks[some]), _RANKED)
    return torch.from_numpy(ranks)


def fetched(held: Tensor, width: int, n_items: int, format_: Format) -> Tensor:
    """Bytes of the rows that devices fetch: those they hold, or all where they send all."""
    return Format("all" if format_.rows == "all" else "changed").table(held, width, n_items)


class Emphasising:
    """What kernels need to let new positives weigh more."""

    def __init__(self, form: forms.Emphasis | None, devices: Devices) -> None:
        self.form, self.devices = form, devices

    def arrays(self, rows: int) -> Emphasis | None:
        """For one thread, whose devices have at most `rows` rows; None where all samples weigh the same."""
        if self.form is None:
            return None
        ptr, items = self.devices.distinct_ptr.numpy(), self.devices.distinct.numpy()
        return Emphasis(ptr, items, _emphasis(self.form, self.devices.longest), floats(rows))


@lru_cache(maxsize=8)
def _emphasis(form: forms.Emphasis, longest: int) -> Floats:
    """The weights of positives by their age, the same in every round."""
    weights: Floats = (0.5 ** (torch.arange(longest) / form.half_life) + form.least).numpy()
    return weights


def noise_of(scale: float) -> Noise | None:
    """Laplace noise on what one thread sends; None where there is none, so that its code is not compiled."""
    return make_noise(scale) if scale else None


def histories(devices: Devices) -> Histories:
    """What devices learn from, for a kernel."""
    return Histories(*(part.numpy() for part in (devices.ptr, devices.train, devices.closed_ptr, devices.gaps)))
