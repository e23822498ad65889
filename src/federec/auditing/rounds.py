"""What attacks say over several rounds.

sums of scores      a user's items stay, negatives are drawn anew: what is named in every message is the user's
with and without    of sums only: mean of the sums of rounds that a user took part in, minus that of the others
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from federec.auditing.measures import Marks, Scores, largest
from federec.auditing.reading import ATTACKS, Known, Said, Seen, along, likeliest

ACROSS = "difference"
"""Name of the attack on the sums with and without a user."""


@dataclass
class Notes:
    """What each attack says of each user in each round that was read."""

    users: list[int]
    known: Known
    attacks: tuple[str, ...] = tuple(ATTACKS)
    said: dict[str, dict[int, tuple[Scores, Marks]]] = field(default_factory=dict)
    """Attack -> round -> scores and named items [U, n_items]; zeros where a user took no part."""
    chosen: dict[int, Marks] = field(default_factory=dict)
    """Round -> who was asked to take part [U]."""
    present: dict[int, Marks] = field(default_factory=dict)
    """Round -> of whom something was read [U]."""
    sums: dict[int, Seen] = field(default_factory=dict)
    """Round -> the sum, where the server sees only sums."""

    def __post_init__(self) -> None:
        self._place = {user: place for place, user in enumerate(self.users)}

    def begin(self, round_: int, chosen: Iterable[int]) -> None:
        """A round that these users take part in."""
        there = set(chosen)
        self.chosen[round_] = np.array([user in there for user in self.users])
        self.present[round_] = np.zeros(len(self.users), bool)
        shape = len(self.users), self.known.n_items
        for name in self.attacks:
            self.said.setdefault(name, {})[round_] = np.zeros(shape, np.float32), np.zeros(shape, bool)

    def read(self, round_: int, user: int, seen: Seen) -> None:
        """A message of one user; that of others is not read."""
        if user in self._place:
            self._note(round_, [self._place[user]], seen)

    def read_sum(self, round_: int, seen: Seen | None) -> None:
        """A sum says the same of all who took part in it."""
        if seen is None:
            return
        self.sums[round_] = seen
        self._note(round_, np.flatnonzero(self.chosen[round_]).tolist(), seen)

    def _note(self, round_: int, places: list[int], seen: Seen) -> None:
        if not len(seen.ids) or not places:
            return
        self.present[round_][places] = True
        for name in self.attacks:
            found = ATTACKS[name](seen, self.known)
            scores, named = self.said[name][round_]
            scores[places], named[places] = found.score, found.named

    def across(self, name: str) -> tuple[Scores, Marks]:
        """An attack's scores, each over its size in its round, added up; and the items that it names: of messages those
        that it names in every round that a user took part in, of sums those with the largest scores."""
        sums, always = np.zeros((len(self.users), self.known.n_items), np.float32), None
        for round_, (scores, named) in self.said[name].items():
            size = np.sqrt(np.square(scores).mean(1, keepdims=True))
            sums += scores / np.where(size > 0, size, 1)
            absent = ~self.present[round_][:, None]
            always = named | absent if always is None else always & (named | absent)
        assert always is not None
        if self.sums:
            always = np.array([largest(each, self.known.items) for each in sums])
        took_part = np.any(list(self.present.values()), axis=0)
        return sums, always & took_part[:, None]

    def differences(self) -> tuple[Scores, Marks] | None:
        """What the sums with each user, minus those without it, say in their main direction. None where no user was
        away in some rounds."""
        if not self.sums:
            return None
        present = np.array([self.present[round_] for round_ in self.sums])
        partly = present.any(0) & ~present.all(0)
        if not partly.any():
            return None
        tables = np.array([seen.rows for seen in self.sums.values()], np.float32)
        shape = len(self.users), self.known.n_items
        scores, named = np.zeros(shape, np.float32), np.zeros(shape, bool)
        ids = next(iter(self.sums.values())).ids
        for place in np.flatnonzero(partly):
            there = present[:, place]
            rows = (tables[there].mean(0) - tables[~there].mean(0)).astype(np.float64)
            found = self._of_difference(Seen(ids, rows, single=False))
            scores[place], named[place] = found.score, found.named
        return scores, named

    def _of_difference(self, seen: Seen) -> Said:
        """Popular items rise on average, whoever takes part: that tells the sign of the main direction."""
        far = along(seen.rows)
        popular = self.known.popularity[seen.ids]
        return likeliest(far * np.sign(np.corrcoef(far, popular)[0, 1]), seen, self.known)
