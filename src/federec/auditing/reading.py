"""Attacks on one message, or on one sum: which items does it name?

With a score r = sigma(w . v + b) the change of row j is proportional to (y - r) w: all rows of a message lie along one
direction w, a user's items on one side of zero and those drawn as negatives on the other. The direction is the first
singular vector of the rows. Its sign is not known; but P items of a user among N bring

    O (1 - (1 - 1 / O)^(k P))     O = N - P,  k negatives for each item

distinct negatives on average, and only one of the two sides is as large as the other side then says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from federec.auditing.measures import Marks, Scores, largest

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Known:
    """What a server knows before it reads anything: the method's settings, the catalogue and its popularity."""

    n_items: int
    negatives: int
    """Drawn for each of a user's items."""
    popularity: NDArray[np.int64]
    """Users of each item."""
    items: int
    """Items that a user has on average."""


class Seen(NamedTuple):
    """What the server sees of the items in one message, or in one sum."""

    ids: NDArray[np.int64]
    """The items whose rows it has."""
    rows: Matrix
    """[len(ids), width]."""
    single: bool = True
    """Whether it is a single user's."""


class Said(NamedTuple):
    """What an attack says of all items."""

    score: Scores
    """More means that the user is more likely to have the item."""
    named: Marks
    """The items that it says the user has."""


Attack = Callable[[Seen, Known], Said]


def rows_that_change(seen: Seen, known: Known) -> Said:
    """Every row that is not zero is the user's item."""
    changed = seen.rows.any(1).astype(float)
    return _said(changed, changed > 0, seen, known)


def size(seen: Seen, known: Known) -> Said:
    """The rows that change most are the user's items."""
    return likeliest(np.linalg.norm(seen.rows, axis=1), seen, known)


def total(seen: Seen, known: Known) -> Said:
    """The rows whose values rise most are the user's items."""
    return likeliest(seen.rows.sum(1), seen, known)


def direction(seen: Seen, known: Known) -> Said:
    """Rows on the side of the main direction that the user's items are on."""
    far = along(seen.rows)
    if not seen.single:  # in a sum popular items go furthest, and negatives are spread over all
        return likeliest(far * np.sign((far**3).sum()), seen, known)
    if not known.negatives:  # only a user's items are sent
        return _said(np.abs(far), far != 0, seen, known)
    sign = orientation(far, known)
    return _said(sign * far, sign * far > 0, seen, known)


ATTACKS: dict[str, Attack] = {"rows": rows_that_change, "size": size, "sum": total, "direction": direction}
"""The attacks on what the server sees in one round."""


def along(rows: Matrix) -> NDArray[np.float64]:
    """How far the rows go along their first right singular vector, whose sign is arbitrary."""
    found: NDArray[np.float64]
    if rows.shape[1] <= len(rows):
        found = rows @ np.linalg.eigh(rows.T @ rows)[1][:, -1]
    else:
        values, vectors = np.linalg.eigh(rows @ rows.T)
        found = vectors[:, -1] * np.sqrt(max(values[-1], 0.0))
    return found


def orientation(far: NDArray[np.float64], known: Known) -> int:
    """1 where the user's items are above zero, -1 where they are below: the sign by which the number of items explains
    the number of negatives better."""
    above, below = int((far > 0).sum()), int((far < 0).sum())

    def misfit(items: int, negatives: int) -> float:
        return abs(negatives - float(expected_negatives(items, known)))

    return 1 if misfit(above, below) <= misfit(below, above) else -1


def expected_negatives(items: int | NDArray[np.int64], known: Known) -> NDArray[np.float64]:
    """Distinct negatives of a user with this many items, on average."""
    others = np.maximum(known.n_items - np.asarray(items), 1)
    drawn: NDArray[np.float64] = others * (1 - (1 - 1 / others) ** (known.negatives * items))
    return drawn


def likely_items(changed: int, known: Known) -> int:
    """Items of a user of whom this many rows change."""
    items = np.arange(1, changed + 1)
    return max(int((items + expected_negatives(items, known) <= changed).sum()), 1)


def likeliest(score: NDArray[np.float64], seen: Seen, known: Known) -> Said:
    """Name as many items as the user is likely to have."""
    count = likely_items(int(seen.rows.any(1).sum()), known) if seen.single else known.items
    return _said(score, largest(score, count), seen, known)


def _said(score: NDArray[np.float64], named: Marks, seen: Seen, known: Known) -> Said:
    """Of all items; those without a row have score 0, which is between the two sides."""
    scores, names = np.zeros(known.n_items, np.float32), np.zeros(known.n_items, bool)
    scores[seen.ids], names[seen.ids] = score, named
    return Said(scores, names)
