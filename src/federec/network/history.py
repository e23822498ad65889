"""One user's interactions on a device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save


@dataclass(frozen=True)
class History:
    """One user's interactions in the order they were recorded."""

    items: NDArray[np.int32]
    times: NDArray[np.float64]
    """NaN where unknown."""
    ratings: NDArray[np.float32]
    """NaN where there is none."""
    forgets: int = 0
    """How often something was erased."""

    @staticmethod
    def empty() -> History:
        return History(np.zeros(0, np.int32), np.zeros(0, np.float64), np.zeros(0, np.float32))

    def __len__(self) -> int:
        return len(self.items)

    def plus(self, item: int, time: float, rating: float) -> History:
        """With one more; an item that is there already moves to the end."""
        old = self.without(item)
        items, ratings = np.append(old.items, np.int32(item)), np.append(old.ratings, np.float32(rating))
        return replace(self, items=items, times=np.append(old.times, time), ratings=ratings)

    def without(self, item: int) -> History:
        keep = self.items != item
        return replace(self, items=self.items[keep], times=self.times[keep], ratings=self.ratings[keep])

    def dump(self) -> bytes:
        """As bytes, for the vault."""
        forgets = np.array(self.forgets)
        return save({"items": self.items, "times": self.times, "ratings": self.ratings, "forgets": forgets})

    @staticmethod
    def of(value: bytes) -> History:
        parts = load(value)
        return History(parts["items"], parts["times"], parts["ratings"], int(parts["forgets"]))
