"""What a run promises: the epsilon that its canaries are held against."""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Promised(NamedTuple):
    """Differential privacy of one user over all rounds of a run."""

    epsilon: float | None
    """None where nothing is promised."""
    delta: float = 0.0


def promised(result: dict[str, Any]) -> Promised:
    """What `result.json` says."""
    said = result.get("privacy") or {}
    epsilon = said.get("epsilon")
    if epsilon is None or not math.isfinite(epsilon):
        return Promised(None)
    return Promised(float(epsilon), float(said["delta"]))
