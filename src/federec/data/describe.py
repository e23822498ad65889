"""The properties of a data set, as plain values: enough to see whether it was read correctly."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from federec.data.interactions import Interactions
from federec.data.split import NEEDED

_MILLISECONDS = 1e11
"""A time above this is in milliseconds: as seconds it would be after the year 5000."""


def describe(data: Interactions) -> dict[str, Any]:
    """Counts, skew, ranges, and what matters for leave-one-out: ties, and users with too few items."""
    per_user = np.bincount(data.users, minlength=data.n_users)
    per_item = np.sort(np.bincount(data.items, minlength=data.n_items))[::-1]
    top = -(-data.n_items // 10)
    return {
        "name": data.name,
        "users": data.n_users,
        "items": data.n_items,
        "interactions": len(data),
        "merged_duplicates": data.merged,
        "density": len(data) / (data.n_users * data.n_items),
        "per_user": _spread(per_user),
        "per_item": _spread(per_item),
        "top_10_percent_items_share": float(per_item[:top].sum() / len(data)),
        "ratings": _rating_range(data),
        "times": _time_range(data),
        "users_with_tied_newest": _ties(data),
        "users_not_evaluated": int(np.count_nonzero(per_user < NEEDED)),
        "sha256": data.sha256,
    }


def _spread(counts: NDArray[np.int64]) -> dict[str, float]:
    return {
        "min": int(counts.min()),
        "median": float(np.median(counts)),
        "mean": float(counts.mean()),
        "max": int(counts.max()),
    }


def _rating_range(data: Interactions) -> list[float] | None:
    """Lowest and highest rating; None where there are none."""
    known = np.empty(0) if data.ratings is None else data.ratings[~np.isnan(data.ratings)]
    return [float(known.min()), float(known.max())] if len(known) else None


def _time_range(data: Interactions) -> list[str] | None:
    """Oldest and newest time as ISO 8601, in UTC; None where there are none."""
    if data.times is None:
        return None
    unit = 1e3 if np.abs(data.times).max() > _MILLISECONDS else 1.0
    return [_iso(float(time), unit) for time in (data.times.min(), data.times.max())]


def _iso(time: float, unit: float) -> str:
    """The time as a date; as a number where it cannot be a date."""
    try:
        return datetime.fromtimestamp(time / unit, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{time:g}"


def _ties(data: Interactions) -> int | None:
    """The number of users with several items at their newest time: there the row order decides the test item."""
    if data.times is None:
        return None
    newest = np.full(data.n_users, -np.inf)
    np.maximum.at(newest, data.users, data.times)
    at_newest = np.bincount(data.users[data.times == newest[data.users]], minlength=data.n_users)
    return int(np.count_nonzero(at_newest > 1))
