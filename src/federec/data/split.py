"""What is held out: a rule puts every interaction into training, validation or test.

leave-one-out         each user's newest interaction is for test, the one before it for validation
time[:a,b,c]          by global time: the oldest fraction a of all interactions trains, the newest c is for test
ratio[:a,b,c]         the same fractions of each user's own interactions
given                 as the data says, in `Interactions.parts`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from federec import streams
from federec.data.interactions import Interactions
from federec.errors import UserError, did_you_mean

RULES = ("leave-one-out", "time", "ratio", "given")
Ties = Literal["random", "file"]
"""The order of a user's interactions with equal times: `random`, a pure function of (seed, user, item); or `file`: the
first row of the source counts as the newest, as in the published code (pandas' `rank(method="first",
ascending=False)`)."""
Fractions = tuple[float, float, float]
FRACTIONS: Fractions = (0.8, 0.1, 0.1)
"""What `time` and `ratio` give to training, validation and test, where the rule does not say."""

NEEDED = 3
"""Interactions a user needs under leave-one-out: one each for training, validation and test."""

_TRAIN, _VALID, _TEST = range(3)
_MILLISECONDS = 1e11  # a time above this is in milliseconds: as seconds it would be after the year 5000
_USERS, _ROWS = 1 << 10, 1 << 20  # processed at a time


@dataclass(frozen=True)
class HeldOut:
    """The held-out items of one part: none, one or several of each user."""

    ptr: NDArray[np.int64]
    """[n_users + 1]: user u's items are `items[ptr[u]:ptr[u + 1]]`."""
    items: NDArray[np.int32]
    """Item codes, each user's oldest first."""

    def __len__(self) -> int:
        return len(self.items)

    @property
    def counts(self) -> NDArray[np.int64]:
        """[n_users] items of each user."""
        return np.diff(self.ptr)

    def first(self, users: NDArray[np.int64]) -> NDArray[np.int32]:
        """The oldest item of each of these users; -1 where there is none."""
        start = self.ptr[users]
        known = start < self.ptr[users + 1]
        found = np.full(len(users), -1, np.int32)
        found[known] = self.items[start[known]]
        return found


class Tied(NamedTuple):
    """Interactions that share their time with another one of the same user."""

    interactions: int
    newest: int
    """Users whose newest interaction is one of them: there the order of ties decides what is held out."""


class Distinct(NamedTuple):
    """Each user's distinct training items: where an item is repeated, only its newest interaction."""

    ptr: NDArray[np.int64]
    items: NDArray[np.int32]
    ratings: NDArray[np.float32] | None
    moments: NDArray[np.int32] | None


@dataclass(frozen=True)
class Split:
    """Every interaction of `data` is in exactly one part: in `train`, in `valid` or in `test`."""

    data: Interactions
    ptr: NDArray[np.int64]
    """[n_users + 1]: user u's training items are `train[ptr[u]:ptr[u + 1]]`."""
    train: NDArray[np.int32]
    """Item codes, each user's oldest first; an item that the data repeats is there several times."""
    valid: HeldOut
    test: HeldOut
    ratings: NDArray[np.float32] | None = None
    """Ratings of the training items, where the data has them."""
    numbers: NDArray[np.int64] | None = None
    """[n_users] numbers of the users in the random streams, where these are not their codes."""
    rule: str = ""
    """What was held out, in plain words."""
    tied: Tied | None = None
    """Interactions whose order the times do not tell; None where there are no times."""
    moments: NDArray[np.int32] | None = None
    """Numbers that rise with the times of the training items, equal where these are; None where no order was drawn."""

    def number(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of these users in the random streams."""
        return users if self.numbers is None else self.numbers[users]

    @property
    def evaluated(self) -> NDArray[np.int64]:
        """Codes of the users that have a held-out item."""
        return np.flatnonzero(self.valid.counts + self.test.counts)

    @cached_property
    def cold(self) -> NDArray[np.bool_]:
        """[n_items]: whether nobody trains on the item."""
        cold = np.ones(self.data.n_items, bool)
        cold[self.train] = False
        return cold

    @cached_property
    def fresh(self) -> Split:
        """What a device knows when its test items are ranked: the validation items belong to the training items."""
        users = np.arange(self.data.n_users)
        owner = [ragged(*part, users)[0] for part in ((self.ptr, self.train), (self.valid.ptr, self.valid.items))]
        order = np.argsort(np.concatenate(owner), kind="stable")
        train = np.concatenate([self.train, self.valid.items])[order]
        none = HeldOut(np.zeros_like(self.ptr), self.valid.items[:0])
        return replace(self, ptr=self.ptr + self.valid.ptr, train=train, valid=none, ratings=None, moments=None)

    def summary(self) -> dict[str, Any]:
        """The rule and what it held out, as plain values: interactions in each part, users without a test item, test
        users without training, and test items that nobody trains on."""
        tested = self.test.counts > 0
        return {
            "split": self.rule,
            "held_out": {"valid": len(self.valid), "test": len(self.test)},
            "tied": None if self.tied is None else self.tied._asdict(),
            "users_not_evaluated": int(np.count_nonzero(~tested)),
            "cold_users": int(np.count_nonzero(tested & (np.diff(self.ptr) == 0))),
            "cold_items": len(np.unique(self.test.items[self.cold[self.test.items]])),
        }

    def history(
        self, with_held_out: bool, users: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Distinct items of all users, or of the given ones, in ascending order, as (offsets, item codes): those of
        training, or all.

        They are sorted because callers search them: is this item one of the user's?
        """
        users = np.arange(self.data.n_users) if users is None else users
        parts = [(self.ptr, self.train)]
        if with_held_out:
            parts += [(part.ptr, part.items) for part in (self.valid, self.test)]
        items = np.empty(sum(int((ptr[users + 1] - ptr[users]).sum()) for ptr, _ in parts), np.int32)
        counts, n_items, end = np.empty(len(users), np.int64), self.data.n_items, 0
        for start in range(0, len(users), _USERS):  # in blocks, so that only the result is large
            block = users[start : start + _USERS]
            pairs = [owner * n_items + found for owner, found in (ragged(*part, block) for part in parts)]
            keys = np.sort(np.concatenate(pairs))
            keys = keys[np.diff(keys, prepend=-1) > 0]
            counts[start : start + len(block)] = np.diff(np.searchsorted(keys, np.arange(len(block) + 1) * n_items))
            items[end : end + len(keys)] = keys % n_items
            end += len(keys)
        return _offsets(counts), items[:end]

    @cached_property
    def distinct(self) -> Distinct:
        """Each user's distinct training items."""
        newest = np.zeros(len(self.train), bool)
        for start in range(0, self.data.n_users, _USERS):
            block = np.arange(start, min(start + _USERS, self.data.n_users))
            owner, items = ragged(self.ptr, self.train, block)
            from_end = np.unique((owner * self.data.n_items + items)[::-1], return_index=True)[1]
            newest[self.ptr[block[-1] + 1] - 1 - from_end] = True
        if newest.all():
            return Distinct(self.ptr, self.train, self.ratings, self.moments)
        ratings = None if self.ratings is None else self.ratings[newest]
        moments = None if self.moments is None else self.moments[newest]
        return Distinct(_offsets(newest)[self.ptr], self.train[newest], ratings, moments)


def parse_rule(text: str) -> tuple[str, Fractions]:
    """The name of a rule and its fractions."""
    name, colon, fractions = text.partition(":")
    if name not in RULES:
        raise UserError(f"unknown split '{name}'{did_you_mean(name, RULES)}")
    if not colon:
        return name, FRACTIONS
    if name not in ("time", "ratio"):
        raise UserError(f"split '{text}': '{name}' has no fractions; write {name}")
    try:
        train, valid, test = (float(part) for part in fractions.split(","))
    except ValueError:
        raise UserError(f"split '{text}': not three fractions; write for example {name}:0.8,0.1,0.1") from None
    if not (min(train, valid, test) > 0 and abs(train + valid + test - 1) < 1e-6):
        raise UserError(f"split '{text}': the fractions for training, validation and test must be above 0 and sum to 1")
    return name, (train, valid, test)


def make_split(data: Interactions, rule: str | None = None, seed: int = 0, ties: Ties = "random") -> Split:
    """The data split by a rule, such as `time:0.8,0.1,0.1`; None: `given` where the data says its parts, else
    leave-one-out. Without timestamps, a user's order is random, a pure function of the seed."""
    name, fractions = parse_rule(rule or ("leave-one-out" if data.parts is None else "given"))
    if name == "leave-one-out":
        return leave_one_out(data, seed, ties)
    rows = _oldest_first(data, seed, ties)
    if name == "time":
        return _by_time(data, rows, fractions)
    return _by_ratio(data, rows, fractions) if name == "ratio" else _given(data, rows)


def leave_one_out(data: Interactions, seed: int = 0, ties: Ties = "random") -> Split:
    """Hold out each user's two newest items; at least one user must have enough items."""
    split = hold_out(data, seed, ties)
    if not len(split.evaluated):
        raise UserError(
            f"no user of '{data.name}' has {NEEDED} distinct items, so nothing can be held out for "
            "validation and test; use data with longer histories"
        )
    return split


def hold_out(
    data: Interactions, seed: int = 0, ties: Ties = "random", numbers: NDArray[np.int64] | None = None
) -> Split:
    """Hold out each user's two newest items, where a user has more than two.

    Without timestamps the order is random, a pure function of (seed, user, item); `numbers` are the users' in the
    random streams, where their codes are not. A user with fewer than three items trains but is not evaluated.
    """
    rows = _oldest_first(data, seed, ties, numbers)
    last = rows.ptr[1:][np.diff(rows.ptr) >= NEEDED] - 1
    rule = "random: no time column" if data.times is None else "last item by time"
    if rows.tied is not None and rows.tied.newest:
        rule += ", equal times at random" if ties == "random" else ", equal times as in the file"
    return replace(_parted(data, rows, last - 1, last, rule), numbers=numbers)


def _by_time(data: Interactions, rows: _Rows, fractions: Fractions) -> Split:
    """The same two cuts for everybody: quantiles of the times of all interactions."""
    if data.times is None:
        raise UserError(f"'{data.name}' has no time column, so it cannot be split by time; use --split ratio")
    train, valid, _ = fractions
    ends = [min(round(end * len(data)), len(data) - 1) for end in (train, train + valid)]
    first, second = np.partition(data.times, ends)[ends]
    assert rows.times is not None
    rows = rows._replace(parts=(rows.times >= first).astype(np.int8) + (rows.times >= second))
    unit = 1e3 if np.abs(data.times).max() > _MILLISECONDS else 1.0
    rule = f"by global time: training before {_date(first / unit)}, test from {_date(second / unit)}"
    return _checked(_parted(data, rows, rows.of(_VALID), rows.of(_TEST), rule), "too many rows share a time")


def _by_ratio(data: Interactions, rows: _Rows, fractions: Fractions) -> Split:
    """Fractions of each user's own interactions, rounded; everybody keeps one for training."""
    counts = np.diff(rows.ptr)
    test = np.minimum(np.floor(counts * fractions[2] + 0.5).astype(np.int64), counts - 1)
    valid = np.minimum(np.floor(counts * fractions[1] + 0.5).astype(np.int64), counts - 1 - test)
    newer = np.repeat(rows.ptr[1:], counts) - 1 - np.arange(len(data))
    parts = (newer < np.repeat(test + valid, counts)).astype(np.int8) + (newer < np.repeat(test, counts))
    rows = rows._replace(parts=parts)
    order = "random: no time column" if data.times is None else "each user's newest for test"
    rule = f"by ratio {', '.join(f'{fraction:g}' for fraction in fractions)}, {order}"
    return _checked(_parted(data, rows, rows.of(_VALID), rows.of(_TEST), rule), "users have too few interactions")


def _given(data: Interactions, rows: _Rows) -> Split:
    """The parts that the data says. Without rows for validation, each user's newest training interaction is taken, if
    the user has another one."""
    if data.parts is None:
        raise UserError(
            f"'{data.name}' says no parts; give the column with --columns split=NAME, or files for validation and test"
        )
    rule, valid, test = "given by the data", rows.of(_VALID), rows.of(_TEST)
    if not len(valid):
        trains = rows.of(_TRAIN)
        ends = np.searchsorted(trains, rows.ptr)
        valid = trains[ends[1:][np.diff(ends) > 1] - 1]
        rule += f"; validation: {'a random' if data.times is None else 'the newest'} training item of each user"
    files = {} if "split" in data.columns else {"validation": "add --valid-file", "test": "add --test-file"}
    return _checked(_parted(data, rows, valid, test, rule), "the data marks no such row", files)


class _Rows(NamedTuple):
    """Interactions sorted by user, then from the oldest to the newest."""

    ptr: NDArray[np.int64]
    """[n_users + 1] where each user's rows begin."""
    items: NDArray[np.int32]
    ratings: NDArray[np.float32] | None
    times: NDArray[Any] | None
    parts: NDArray[np.int8] | None
    tied: Tied | None
    drawn: bool
    """Whether the order of equal times was drawn at random."""

    def of(self, part: int) -> NDArray[np.int64]:
        """The rows of a part."""
        return np.flatnonzero(self.parts == part)


def _parted(data: Interactions, rows: _Rows, valid: NDArray[np.int64], test: NDArray[np.int64], rule: str) -> Split:
    """The split from the rows of validation and of test."""
    trains = np.ones(len(data), bool)
    trains[valid] = trains[test] = False
    first, second = (HeldOut(np.searchsorted(part, rows.ptr), rows.items[part]) for part in (valid, test))
    ptr = rows.ptr - first.ptr - second.ptr
    ratings = None if rows.ratings is None else rows.ratings[trains]
    moments = None
    if rows.drawn:
        assert rows.times is not None
        moments = np.cumsum(np.diff(rows.times[trains], prepend=0) != 0, dtype=np.int32)
    return Split(data, ptr, rows.items[trains], first, second, ratings, rule=rule, tied=rows.tied, moments=moments)


def _checked(split: Split, why: str, remedies: Mapping[str, str] | None = None) -> Split:
    """A split that can be trained, validated and tested; `remedies` say what to do where a part is empty."""
    for part, count in (("training", len(split.train)), ("validation", len(split.valid)), ("test", len(split.test))):
        if not count:
            name = split.data.name
            remedy = (remedies or {}).get(part, "use another --split")
            raise UserError(f"the split of '{name}' leaves nothing for {part}: {why}; {remedy}")
    return split


def ragged(
    ptr: NDArray[np.int64], values: NDArray[np.int32], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Values of these rows of a ragged array, one after the other, and the position in `rows` that each belongs to."""
    counts = ptr[rows + 1] - ptr[rows]
    owner = np.repeat(np.arange(len(rows)), counts)
    shift = ptr[rows] - (np.cumsum(counts) - counts)
    return owner, values[np.arange(len(owner)) + np.repeat(shift, counts)]


def _oldest_first(data: Interactions, seed: int, ties: Ties, numbers: NDArray[np.int64] | None = None) -> _Rows:
    """The rows of the data in order."""
    columns = data.users, data.items, data.ratings, data.times, data.parts
    ordered = _in_order(data)
    if not ordered:
        order = _order(data, seed, ties, numbers)
        columns = tuple(None if column is None else column[order] for column in columns)  # type: ignore[assignment]
    users, items, ratings, times, parts = columns
    ptr = np.searchsorted(users, np.arange(data.n_users + 1, dtype=users.dtype))
    tied = None if times is None else Tied(0, 0) if ordered else _tied(ptr, users, times)
    drawn = tied is not None and tied.interactions > 0 and ties == "random"
    return _Rows(ptr, items, ratings, times, parts, tied, drawn)


def _tied(ptr: NDArray[np.int64], users: NDArray[Any], times: NDArray[Any]) -> Tied:
    """Ties among rows that are sorted by user and time."""
    tied = np.zeros(len(times) + 1, bool)  # one more: users without rows look there
    tied[1:-1] = (users[1:] == users[:-1]) & (times[1:] == times[:-1])  # with the row before it
    newest = tied[ptr[1:] - 1] & (np.diff(ptr) > 0)
    return Tied(int(np.count_nonzero(tied[:-1] | tied[1:])), int(np.count_nonzero(newest)))


def _in_order(data: Interactions) -> bool:
    """Whether the times tell that the rows are already in order, as in large data: then nothing needs to be sorted."""
    if data.times is None:
        return False
    for start in range(0, len(data), _ROWS):
        rows = slice(start, start + _ROWS + 1)
        users, times = np.diff(data.users[rows]), np.diff(data.times[rows])
        if not ((users > 0) | ((users == 0) & (times > 0))).all():
            return False
    return True


def _order(data: Interactions, seed: int, ties: Ties, numbers: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Rows sorted by user, then from the oldest to the newest."""
    if data.times is None:
        return np.lexsort((_draws(data, seed, streams.HOLDOUT, numbers), data.users))
    last = _draws(data, seed, streams.TIES, numbers) if ties == "random" else -np.arange(len(data))
    return np.lexsort((last, data.times, data.users))


def _draws(data: Interactions, seed: int, purpose: int, numbers: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """A random number for each row, a pure function of (seed, user, item) and, where the data repeats a pair, of how
    many times it came before."""
    users = data.users.astype(np.int64) if numbers is None else numbers[data.users]
    key = streams.keys(seed, streams.ONCE, users)
    drawn: NDArray[np.int64] = streams.bits(key, purpose + data.items.astype(np.int64))
    order = np.lexsort((drawn, data.users))
    again = np.zeros(len(data), bool)
    again[1:] = (np.diff(data.users[order]) == 0) & (np.diff(data.items[order]) == 0)
    if not again.any():
        return drawn
    # Repeated pairs have the same number and so follow one another: the first keeps it, the others get their own.
    position = np.arange(len(data))
    occurrence = np.empty(len(data), np.int64)
    occurrence[order] = position - np.maximum.accumulate(np.where(again, 0, position))
    drawn = streams.bits(key, purpose + (occurrence << 32) + data.items.astype(np.int64))
    return drawn


def _offsets(counts: NDArray[Any]) -> NDArray[np.int64]:
    """The beginning of each part of that many values, and the end of the last one."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _date(seconds: float) -> str:
    """A time as a date, with minutes where it is not midnight; as a number where it hardly is one."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"
    return f"{seconds:g}" if moment.year < 1980 else moment.isoformat(" ", "minutes").removesuffix(" 00:00")
