"""What a faster engine needs to know of a method: one small class for each kind of method that it has a kernel for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LinearScore:
    """The score is sigma(w . v + b) and the step is SGD."""

    table: str
    """Shared item rows v."""
    weight: str
    """Private w."""
    bias: str | None
    """Private b, if any."""
    rate: float
    """Step of w and b."""
    item_rate: float
    """Step of v."""
    alternate: bool
    """v steps after w, with the new w; both step at once otherwise."""


Form = LinearScore
