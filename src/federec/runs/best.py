"""Which round of a run counts: the one with the best value on validation, and the earliest among equals.

Metrics are means over users. The same ranks give values that differ in their last bits when the users are added up in
another order, as on several devices, and secure sums are rounded to about 3e-5. Values closer than `TOLERANCE` are
therefore equal. Up to 10 000 users one user's step in HR@10 is larger than that; with more users the difference is far
smaller than chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Best:
    """The best round so far."""

    round: int = 0
    """0 before the first round."""
    value: float | None = None
    """Its value on validation; None where no round has one."""
    after: int = 0
    """Rounds played before the state that holds its model: the best round included, or, where devices rank with rows
    that they tune in the round and then drop, those before it. The best round is then played again."""

    def stale(self, round_: int, patience: int | None) -> bool:
        """Whether so many rounds have been played since the best one that a run with this patience ends."""
        return patience is not None and self.value is not None and round_ - self.round >= patience

    def considered(self, round_: int, value: float | None, after: int) -> Best:
        """The best round, now that this one has been played. A value that is missing or not a number never wins against
        one that is there; where no round has a value, the newest counts."""
        known = None if value is None or math.isnan(value) else value
        if not self.round:
            return Best(round_, known, after)
        wins = self.value is None or (known is not None and known > self.value + TOLERANCE)
        return Best(round_, known, after) if wins else self
