"""What plays the rounds of a simulation and scores for its devices: cohorts stacked in torch, or a fused kernel."""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from federec.cohort.cohort import Cohort
from federec.cohort.draw import Devices
from federec.evaluation.evaluator import AllScores, Sampled
from federec.federation.channel import Link
from federec.federation.engine import compiled, fused_round, fused_scores, neighbours, warm_up
from federec.federation.round import play
from federec.federation.scoring import Neighbour, Ranking, rank_own, score_global
from federec.federation.server import RoundReport, Sum
from federec.federation.state import State
from federec.federation.threads import one_torch_thread
from federec.methods.base import DeviceMethod
from federec.methods.forms import AdditiveScore, LinearScore, NeuralScore, NextItem

log = logging.getLogger("federec")

_LOADED = 2.0
"""Seconds after which kernels that were compiled before are certainly loaded: those that are not are being compiled."""


_SCORES = 1 << 22
"""Scores of all items that a CPU's kernel holds for some users at a time."""


_WHOLE = (LinearScore, AdditiveScore, NeuralScore, NextItem)
"""Forms whose rounds and scores the CPU's kernels do as a whole."""


class Engine(Protocol):
    """Plays the rounds of one method on one set of devices."""

    few: int
    """Users to score at a time on a few items each."""
    full: int
    """Users to score at a time on all items."""
    alone: bool
    """Whether kernels play rounds and score as a whole: torch has little to do beside them."""

    def torch_threads(self) -> AbstractContextManager[None]:
        """Within it, rounds are played and evaluated."""

    def warm_up(self, state: State) -> float:
        """Get ready for the first round; the seconds that this took, 0 where nothing had to be done."""

    def play(
        self,
        state: State,
        users: Tensor,
        round_: int,
        own: Sequence[Ranking],
        sum_: Sum,
        other: Ranking | None = None,
    ) -> tuple[RoundReport, float]:
        """Play a round of these users in place. Rank each with the rows that it tuned in the round (`own`), and with
        those that its neighbour tuned (`other`). Also returns the seconds spent on ranking, where they are known."""

    def score(self, state: State, users: Tensor, items: Tensor) -> Tensor:
        """Scores [C, K] of items [C, K] with the server's rows."""


class Stacked:
    """Cohorts of devices stacked in torch: plays every method."""

    def __init__(self, method: DeviceMethod, devices: Devices, seed: int, link: Link) -> None:
        self.method, self.devices, self.seed, self.link = method, devices, seed, link
        self.few, self.full = (256, 32) if _on_cpu(devices) else (1 << 12, 256)
        self.alone = False
        if method.reads_history:  # more histories have less padding
            self.few, self.full = max(self.few, 512), max(self.full, 256)

    def torch_threads(self) -> AbstractContextManager[None]:
        return nullcontext()

    def warm_up(self, state: State) -> float:
        return 0.0

    def play(
        self,
        state: State,
        users: Tensor,
        round_: int,
        own: Sequence[Ranking],
        sum_: Sum,
        other: Ranking | None = None,
    ) -> tuple[RoundReport, float]:
        neighbour, ranking = Neighbour(), 0.0

        def observe(cohort: Cohort) -> None:
            nonlocal ranking
            now = time.perf_counter()
            for ranks in own:
                rank_own(ranks, self.method, cohort, state, self.full)
            if other is not None:
                other.add(cohort.users, partial(neighbour.score, self.method, cohort, state))
            ranking += time.perf_counter() - now

        inputs = self.method, state, self.devices, users, self.seed, round_
        return play(*inputs, observe, sum_=sum_, link=self.link), ranking

    def score(self, state: State, users: Tensor, items: Tensor) -> Tensor:
        return score_global(self.method, state, users, items, self.devices)


class _Parted(NamedTuple):
    """The users of a round, by what is asked of them."""

    whole: tuple[Tensor, ...]
    """Scores of all items, so many users at a time."""
    some: tuple[Tensor, ...]
    """Scores of some items."""
    others: Tensor
    """Nothing: they only learn."""


class Fused:
    """A kernel that trains one device after the other and scores as it goes, so that ranking has no time of its own."""

    def __init__(self, method: DeviceMethod, devices: Devices, seed: int, link: Link, evaluated: Tensor) -> None:
        """`evaluated`: for each device, whether it is ranked."""
        self.method, self.devices, self.seed, self.link, self.evaluated = method, devices, seed, link, evaluated
        self.alone = _on_cpu(devices) and isinstance(method.fused_form(devices.n_items), _WHOLE)
        some = max(8, min(256, _SCORES // devices.n_items))
        self.few, self.full = (1 << (13 if self.alone else 11), some) if _on_cpu(devices) else (1 << 14, 256)
        if method.reads_history:  # what histories need lies in tables as wide as the longest
            self.few = min(self.few, 512)
        self.warm = False
        self._known_parts: deque[tuple[Sequence[object], _Parted]] = deque(maxlen=2)
        self._items: Tensor | None = None

    def torch_threads(self) -> AbstractContextManager[None]:
        return one_torch_thread() if self.alone else nullcontext()

    def compiled(self, state: State) -> bool:
        """Whether the kernels have been compiled on this machine before."""
        with one_torch_thread():
            return compiled(self.method, state, self.devices, self.link)

    def warm_up(self, state: State) -> float:
        if self.warm:
            return 0.0
        self.warm = True
        return wait_for(lambda: warm_up(self.method, state, self.devices, self.link))

    def play(
        self,
        state: State,
        users: Tensor,
        round_: int,
        own: Sequence[Ranking],
        sum_: Sum,
        other: Ranking | None = None,
    ) -> tuple[RoundReport, float]:
        before = state.copy() if other is not None else None
        playing = fused_round(self.method, state, self.devices, self.seed, round_, self.link)
        few = [ranks for ranks in own if ranks.whole is None]
        assert len(few) <= 1  # a second one would have the users learn again
        thorough = [ranks.whole for ranks in own if ranks.whole is not None]
        wholes, parts, others = self._parted(users, thorough, bool(few)) if own else _Parted((), (), users)
        with one_torch_thread():
            for some in wholes:
                # A user learns only once, so the rankings share all items' scores.
                scores = playing.play(some, self._all_items(len(some)))
                for ranks in own:
                    ranks.add(some, AllScores(scores))
            for some in parts:
                ranks = few[0]
                if playing.rank is not None and isinstance(ranks, Sampled) and ranks.of.complete:
                    ranks.add_ranks(some, partial(playing.rank, some))
                else:
                    ranks.add(some, partial(playing.play, some))
            if len(others) or not (wholes or parts):  # once even without users: `finish` needs what the kernel notes
                playing.play(others, others.new_zeros(len(others), 0))
        report = playing.finish(sum_)
        if before is not None and other is not None:
            # The round is played twice: a neighbour's rows are judged by the weights that a device ends with.
            asked = users[self.evaluated[users]]
            again = neighbours(self.method, before, state, self.devices, asked, self.seed, round_, self.few)
            for some, score in again:
                other.add(some, score)
        return report, 0.0

    def _parted(self, users: Tensor, thorough: list[Tensor], few: bool) -> _Parted:
        """How these users are asked, where masks [n_users] say who is ranked against all items, and `few` whether
        everybody evaluated is ranked against some. If users and masks are the same in every round, so are the parts."""
        asked = users, *thorough, few
        for known, parted in self._known_parts:
            if len(known) == len(asked) and all(map(operator.is_, known, asked)):
                return parted
        whole = torch.stack(thorough).any(0)[users] if thorough else torch.zeros_like(users, dtype=torch.bool)
        whole &= self.evaluated[users]
        some = self.evaluated[users] & ~whole if few else torch.zeros_like(whole)
        parted = _Parted(
            tuple(some_at_a_time(users[whole], self.full)),
            tuple(some_at_a_time(users[some], self.few)),
            users[~whole & ~some],
        )
        self._known_parts.append((asked, parted))
        return parted

    def _all_items(self, count: int) -> Tensor:
        """A list of all items for each of so many users."""
        if self._items is None or len(self._items) < count:
            self._items = torch.arange(self.devices.n_items, device=self.devices.ptr.device).repeat(count, 1)
        return self._items[:count]

    def score(self, state: State, users: Tensor, items: Tensor) -> Tensor:
        return fused_scores(self.method, state, self.devices, users, items)


def wait_for(compile_: Callable[[], object]) -> float:
    """Have kernels compiled or loaded, and say so if that takes long; the seconds that it took."""
    began = time.perf_counter()
    compiling = threading.Timer(_LOADED, log.info, ["compiling kernels, once (about 10 s)"])
    compiling.start()
    try:
        compile_()
    finally:
        compiling.cancel()
    return time.perf_counter() - began


def _on_cpu(devices: Devices) -> bool:
    """A CPU wants little memory, a GPU few launches."""
    return devices.ptr.device.type == "cpu"


def some_at_a_time(users: Tensor, size: int) -> Sequence[Tensor]:
    """The users, `size` at a time; torch would split nobody into one part. A few of them stay the same tensor, because
    what is known of it is used again."""
    if len(users) <= size:
        return (users,) if len(users) else ()
    return list(users.split(size))
