"""Frames that federec gives back: of pandas where the program uses pandas, of polars otherwise.

polars comes with federec, pandas does not. A program uses pandas if it has imported it: then its frames are what the
program's other code expects. This is the only place that decides.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

Frame = Any
"""A `pandas.DataFrame` or a `polars.DataFrame`."""


def frame(columns: Mapping[str, Any]) -> Frame:
    """A frame of these columns, each a list or a NumPy array."""
    if "pandas" in sys.modules:
        return sys.modules["pandas"].DataFrame(dict(columns))
    import polars

    return polars.DataFrame(dict(columns), strict=False)


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested values by names like `valid.hr@10`, for the columns of a frame."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {before + key: value}
    return found
