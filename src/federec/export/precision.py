"""Item tables in fewer bytes: float16, or int8 with one scale per row.

    int8:  code = round(x / scale),  scale = max |x| of the row / 127       x = code * scale, to half a scale

A device reads such a table without torch, so nothing here needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Precision = Literal["float32", "float16", "int8"]
LARGEST = 127
"""The largest code of int8. -128 is not used, so that x and -x have opposite codes."""


def stored(table: NDArray[np.float32], precision: Precision) -> dict[str, NDArray[Any]]:
    """The arrays to store for a table [n, ...]: `values`, and with int8 also `scales` [n], one per row.

    Values that are not finite have no code, and float16 ends at 65,504: both raise ValueError.
    """
    if precision == "float32":
        return {"values": np.ascontiguousarray(table, np.float32)}
    if not np.isfinite(table).all():
        raise ValueError("the table has values that are not finite")
    if precision == "float16":
        if np.abs(table).max(initial=0) > np.finfo(np.float16).max:
            raise ValueError("the table has values that are too large for float16; use int8")
        return {"values": table.astype(np.float16)}
    within = tuple(range(1, table.ndim))
    scales = (np.abs(table).max(within, initial=0) / LARGEST).astype(np.float32)
    by_row = scales.reshape(-1, *[1] * len(within))
    # A row of zeros, or of values so small that their scale is 0, is stored as zeros.
    codes = np.divide(table, by_row, out=np.zeros_like(table), where=by_row > 0)
    return {"values": np.rint(codes).clip(-LARGEST, LARGEST).astype(np.int8), "scales": scales}


def restored(stored: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """The table [n, ...] that `stored` stands for, as float32."""
    values = stored["values"].astype(np.float32)
    return values * stored["scales"].reshape(-1, *[1] * (values.ndim - 1)) if "scales" in stored else values
