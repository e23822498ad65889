"""The audit of a run: a curious server, which has just what the run's server had, tries to name users' items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from federec.aggregators.base import Aggregator
from federec.auditing import shadow
from federec.auditing.canaries import Canaries, Listening
from federec.auditing.findings import Audit, Finding
from federec.auditing.measures import Marks, Scores, largest, measured, strata
from federec.auditing.promise import promised
from federec.auditing.reading import ATTACKS, Known, Seen
from federec.auditing.replay import CENTRAL, Federation
from federec.auditing.rounds import ACROSS, Notes
from federec.cohort.draw import Devices
from federec.cohort.update import Update
from federec.errors import UserError, did_you_mean
from federec.federation.round import select
from federec.federation.server import server_random
from federec.federation.state import State
from federec.runtimes.run import Run
from federec.stages.base import Settling

SHADOW, GUESS = "shadow", "popularity"
NAMES = (*ATTACKS, ACROSS, SHADOW)
"""Attacks that can be asked for. What popularity alone guesses is always there, to compare with."""
READ = 10
"""Rounds, from the first on, whose messages are read; and that of the best round."""
USERS, CANARIES = 100, 10_000


def audit(
    run: Run | str | Path,
    *,
    users: int = USERS,
    attacks: Iterable[str] = (),
    canaries: int = CANARIES,
) -> Audit:
    """Attack a run as a curious server would, and say what it learns.

    Rounds of the run are played again, and the attacks read what the run's channel shows to the server: single
    messages or sums. `users`: how many users are attacked, drawn at random; `attacks`: names of the attacks, all if
    empty; `canaries`: devices with known updates, which measure epsilon where the run promises one; 0 means none.

    >>> found = fr.audit(fr.train(fr.PFedRec(dim=8), data, rounds=1), users=10)
    >>> found.best.measured.precision.mean > 0.9
    True
    """
    if not isinstance(run, Run):
        run = Run.load(run)
    for name in (asked := tuple(attacks)):
        if name not in NAMES:
            raise UserError(f"unknown attack '{name}'{did_you_mean(name, NAMES)}")
    if users < 1:
        raise UserError("an audit needs at least one user; give --users 1 or more")
    work = _Work.of(run, users, asked or NAMES)
    promise, heard, empirical = promised(run.result), None, None
    if promise.epsilon is not None and canaries and Canaries.fit(work.federation):
        heard = Listening(work.federation, Canaries.drawn(work.federation, canaries, min(READ, run.result["rounds"])))
    work.play(run, heard)
    if promise.epsilon is not None and heard is not None:
        empirical = heard.found(promise.epsilon, promise.delta)
    return Audit(run.result, _channel(work.federation), len(work.users), work.findings(), promise, empirical)


def _channel(federation: Federation) -> str:
    """What the server sees, in plain words."""
    promise = federation.link.channel.promise
    noise = " under noise" if promise.noise and promise.noise != CENTRAL else ""
    return f"only sums over devices{noise}" if federation.hidden else f"every device's message{noise}"


class _Slot(NamedTuple):
    """One reading of an attack: of one round or of all."""

    sees: str
    round: int | None


@dataclass
class _Work:
    """The audit while rounds are played."""

    federation: Federation
    known: Known
    users: list[int]
    has: Marks
    """[U, n_items] of the users that are attacked."""
    notes: Notes
    invented: Devices
    invented_has: Marks
    shadows: Notes
    shadow_state: State
    names: tuple[str, ...]

    @staticmethod
    def of(run: Run, users: int, names: tuple[str, ...]) -> _Work:
        federation, split = Federation.of(run), run.config.split_of(run.data)
        method, n_items = federation.method, run.data.n_items
        owner = np.repeat(np.arange(run.data.n_users), np.diff(split.ptr))
        pairs = np.unique(owner.astype(np.int64) * n_items + split.train)
        popularity = np.bincount(pairs % n_items, minlength=n_items)
        learners = federation.trainer.learners.numpy()
        known = Known(n_items, method.negatives, popularity, max(1, round(len(pairs) / len(learners))))
        chosen = np.sort(np.random.default_rng(run.config.seed).permutation(learners)[:users])
        mine = pairs[np.isin(pairs // n_items, chosen)]
        has = np.zeros((len(chosen), n_items), bool)
        has[np.searchsorted(chosen, mine // n_items), mine % n_items] = True
        read = tuple(name for name in ATTACKS if name in names or SHADOW in names)
        count = min(len(chosen), len(federation.devices)) if SHADOW in names else 1
        invented, invented_has = shadow.invented(split, known, count, run.config.seed)
        return _Work(
            federation,
            known,
            chosen.tolist(),
            has,
            Notes(chosen.tolist(), known, read),
            invented,
            invented_has,
            Notes(list(range(count)), known, read),
            State.start(method, n_items, count, federation.seed),
            names,
        )

    def play(self, run: Run, heard: Listening | None) -> None:
        """Play rounds again: all of them where canaries are looked for in sums, else those that are read."""
        best, last = run.point.best, run.result["rounds"]
        state = self.federation.start()
        early, whole = min(READ, last), heard is not None and self.federation.in_sums
        for round_ in range(1, (last if whole else early) + 1):
            self._round(state, round_, round_ <= early or round_ == best.round, heard)
        late = best.after + 1
        if not whole and early < late <= last and run.point.best_state is not None:
            self._round(self.federation.copied(run.point.best_state), late, True, heard)

    def _round(self, state: State, round_: int, read: bool, heard: Listening | None) -> None:
        federation = self.federation
        if read and SHADOW in self.names:
            self._shadow(state, round_)
        notes = self.notes
        if read:
            notes.begin(round_, federation.trainer.chosen(round_).tolist())

        def take(update: Update, users: Tensor) -> None:
            for user, seen in federation.messages(update, users) if read and not federation.hidden else ():
                notes.read(round_, user, seen)

        channel = federation.channel(state)
        got, used = federation.play(state, round_, take)
        if read and federation.hidden:
            notes.read_sum(round_, federation.sum_of(got, used))
        if heard is None:
            return
        if federation.in_sums:
            heard.hear_sum(round_, channel, used)
        elif read:
            heard.hear_messages(round_, channel)

    def _shadow(self, state: State, round_: int) -> None:
        """Invented devices learn from the same parameters and send through the same channel."""
        federation, mine = self.federation, self.shadow_state
        mine.shared = state.shared
        users = select(len(self.invented), federation.trainer.participation, federation.seed + 1, round_)
        self.shadows.begin(round_, users.tolist())
        aggregator = federation.link.aggregator(self.invented.n_items)
        mine.server = dict(state.server)

        def take(update: Update, some: Tensor) -> None:
            aggregator.add(update)
            for user, seen in federation.messages(update, some) if not federation.hidden else ():
                self.shadows.read(round_, user, seen)

        federation.send(mine, self.invented, users, round_, take)
        if federation.hidden:
            self.shadows.read_sum(round_, self._read(aggregator, state))

    def _read(self, aggregator: Aggregator, state: State) -> Seen | None:
        """The sum over invented devices as the server reads it."""
        federation, got = self.federation, dict(aggregator.total)
        random = server_random(federation.seed, 0, self.invented)
        settling = Settling(aggregator.devices, random, {}, federation.method.sends(), aggregator.n_items)
        return federation.sum_of(got, federation.channel(state).server(got, settling))

    def findings(self) -> list[Finding]:
        """What each attack says, of the first round, of the last one that was read and of all."""
        found = [self._finding(GUESS, "nothing", *self._guess(), np.ones(len(self.users), bool))]
        for slot in self._slots():
            there = self._there(slot.round)
            for name in (each for each in self.names if each in ATTACKS):
                found.append(self._finding(name, slot.sees, *_said(self.notes, name, slot.round), there))
            if SHADOW in self.names:
                found.append(self._finding(SHADOW, slot.sees, *self._inferred(slot.round), there))
        if ACROSS in self.names and (said := self.notes.differences()) is not None:
            found.append(self._finding(ACROSS, f"{len(self.notes.sums)} sums", *said, self._there(None)))
        return found

    def _slots(self) -> Iterator[_Slot]:
        rounds = [round_ for round_, there in self.notes.present.items() if there.any()]
        what = "sum" if self.federation.hidden else "message"
        if rounds:
            yield _Slot(f"one {what}, round {rounds[0]}", rounds[0])
        if len(rounds) > 1:
            yield _Slot(f"one {what}, round {rounds[-1]}", rounds[-1])
            yield _Slot(f"{what}s of {len(rounds)} rounds", None)

    def _there(self, round_: int | None) -> Marks:
        """Users who took part in a round, or in any."""
        present = self.notes.present
        there: Marks = np.any(list(present.values()), axis=0) if round_ is None else present[round_]
        return there

    def _guess(self) -> tuple[Scores, Marks]:
        """What the server says if it looks at nothing: the most popular items."""
        popular = self.known.popularity.astype(np.float32)
        shape = self.has.shape
        return np.broadcast_to(popular, shape), np.broadcast_to(largest(popular, self.known.items), shape)

    def _inferred(self, round_: int | None) -> tuple[Scores, Marks]:
        """What the logistic regression says that was fitted to invented users."""

        def x(notes: Notes) -> NDArray[np.float32]:
            return shadow.features([_said(notes, name, round_)[0] for name in notes.attacks], self.known)

        likely = shadow.probability(x(self.notes), shadow.fitted(x(self.shadows), self.invented_has))
        return likely, likely > 0.5

    def _finding(self, name: str, sees: str, scores: Scores, named: Marks, there: Marks) -> Finding:
        group = strata(self.known.popularity)
        return Finding(name, sees, measured(scores[there], named[there], self.has[there], group))


def _said(notes: Notes, name: str, round_: int | None) -> tuple[Scores, Marks]:
    return notes.across(name) if round_ is None else notes.said[name][round_]
