"""Interactions: who touched what, when. All data reaches the rest of federec in this form."""

from __future__ import annotations

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
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        return len(self.item_ids)

    def __len__(self) -> int:
        return len(self.users)

    @property
    def merged(self) -> int:
        """The number of rows that repeated a (user, item) pair and were merged into it."""
        return self.source_rows - self.known_before - len(self)

    def user_code(self, label: object) -> int:
        """The code of a user's label (`42` and `"42"` are the same label)."""
        found = np.flatnonzero(self.user_ids.astype(str) == str(label))
        if not len(found):
            few = ", ".join(str(i) for i in self.user_ids[:5])
            raise UserError(f"user '{label}' is not in this data set; its users are like {few}")
        return int(found[0])

    def item_label(self, code: int) -> int | str:
        """An item's label as a plain Python value."""
        label = self.item_ids[code]
        return label if isinstance(label, str) else int(label)
