"""Interactions: who touched what, when. All data reaches the rest of federec in this form."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from federec.errors import UserError

Ids = NDArray[Any]  # labels of the source: int64 where all are whole numbers, else str objects


@dataclass(frozen=True)
class Interactions:
    """One row per distinct (user, item) pair, in the order of the source; with `repeats`, pairs may occur repeatedly.

    `users` and `items` are codes 0..n-1 in order of first appearance; `user_ids[code]` and
    `item_ids[code]` are the source's own labels.

    >>> data = fr.load("tastes")
    >>> data.n_users, data.n_items, len(data)
    (943, 1682, 100000)
    """

    name: str
    users: NDArray[np.int32]
    items: NDArray[np.int32]
    user_ids: Ids
    item_ids: Ids
    times: NDArray[np.float64] | None = None
    """Seconds (or whatever unit the source has); None where the source has no timestamps."""
    ratings: NDArray[np.float32] | None = None
    sha256: str = ""
    """SHA-256 of the source file's bytes; for a built-in set, of the generated rows; empty for data frames."""
    source_rows: int = 0
    """Rows read after the filters, before duplicate pairs were merged."""
    origin: dict[str, Any] = field(default_factory=dict, repr=False)
    """Arguments with which `load` loads this data again; empty for data that was not loaded."""
    titles: dict[str, str] = field(default_factory=dict, repr=False)
    """Item label (as text) -> title, where the source has them."""
    columns: dict[str, str] = field(default_factory=dict)
    """Role (`user`, `item`, `rating`, `timestamp`, `split`) -> the source's column; its position where there is no
    header."""
    unused: tuple[str, ...] = ()
    """The source's columns that have no role."""
    maybe_time: str = ""
    """An unused column that looks like times, where no column was read as the time."""
    parts: NDArray[np.int8] | None = None
    """Each row's part of a split that the source gives: 0 training, 1 validation, 2 test."""
    repeats: bool = False
    """Whether rows that repeat a (user, item) pair were kept."""
    repeated: int = 0
    """The number of kept rows that repeat a (user, item) pair of an earlier row."""
    below: int = 0
    """The number of rows that were left out because their rating is too low or blank."""
    known_before: int = 0
    """The number of held-out rows that were left out because the pair is also in an earlier part."""

    @property
    def n_users(self) -> int:
        """The number of users."""
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        """The number of items."""
        return len(self.item_ids)

    def __len__(self) -> int:
        return len(self.users)

    @property
    def merged(self) -> int:
        """The number of rows that repeated a (user, item) pair and were merged into it."""
        return self.source_rows - self.known_before - len(self)

    def __repr__(self) -> str:
        return f"Interactions({self.name}: {self.n_users:,} users, {self.n_items:,} items, {len(self):,} interactions)"

    def _repr_html_(self) -> str:
        from federec.data.notebook import html

        return html(self)

    def user_code(self, label: object) -> int:
        """The code of a user's label (`42` and `"42"` are the same label)."""
        return int(codes(self.user_ids, [label], "user")[0])

    def item_code(self, label: object) -> int:
        """The code of an item's label."""
        return int(codes(self.item_ids, [label], "item")[0])

    def item_label(self, code: int) -> int | str:
        """An item's label as a plain Python value."""
        label = self.item_ids[code]
        return label if isinstance(label, str) else int(label)


def codes(ids: Ids, labels: Iterable[object], word: str) -> NDArray[np.int64]:
    """The codes of labels among `ids`, the labels of all codes; `word` says what they are the labels of."""
    known = {label: code for code, label in enumerate(ids.astype(str).tolist())}
    found = []
    for label in map(str, labels):
        if label not in known:
            near = difflib.get_close_matches(label, known, n=1)
            few = ", ".join(itertools.islice(known, 5))
            remedy = f" - did you mean '{near[0]}'?" if near else f"; its {word}s are like {few}"
            raise UserError(f"{word} '{label}' is not in this data set{remedy}")
        found.append(known[label])
    return np.array(found, np.int64)
