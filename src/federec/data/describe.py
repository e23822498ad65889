"""The properties of a data set, as plain values: enough to see whether it was read correctly."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from federec.data.columns import INTERACTIONS, listing, shown
from federec.data.interactions import Interactions
from federec.data.split import hold_out, make_split
from federec.errors import UserError

_MILLISECONDS = 1e11
"""A time above this is in milliseconds: as seconds it would be after the year 5000."""


def describe(data: Interactions, rule: str | None = None) -> dict[str, Any]:
    """What each column was read as, counts, skew, ranges, and what matters for the split: ties, and users that have no
    test item. `rule` says what is held out, as for a run."""
    held_out, not_evaluated = _split(data, rule)
    per_user = np.bincount(data.users, minlength=data.n_users)
    per_item = np.sort(np.bincount(data.items, minlength=data.n_items))[::-1]
    top = -(-data.n_items // 10)
    return {
        "name": data.name,
        **reading(data),
        "split": held_out,
        "users": data.n_users,
        "items": data.n_items,
        "interactions": len(data),
        "density": (len(data) - data.repeated) / (data.n_users * data.n_items),
        "per_user": _spread(per_user),
        "per_item": _spread(per_item),
        "top_10_percent_items_share": float(per_item[:top].sum() / len(data)),
        "ratings": _rating_range(data),
        "times": _time_range(data),
        "share_of_tied_events": _tied_share(data),
        "users_with_tied_newest": _ties(data),
        "users_not_evaluated": not_evaluated,
        "items_with_title": sum(str(label) in data.titles for label in data.item_ids) if data.titles else 0,
        "sha256": data.sha256,
    }


def reading(data: Interactions) -> dict[str, Any]:
    """How the data was read, for `result.json`."""
    return {
        "columns": data.columns,
        "unused_columns": list(data.unused),
        "merged_duplicates": max(0, data.merged),  # data that was not loaded does not know
        "kept_repeats": data.repeated,
        "below_min_rating": data.below,
        "held_out_known_before": data.known_before,
    }


def remarks(data: Interactions, in_python: bool = False) -> list[str]:
    """What a user should know of how the data was read before a run starts; one sentence each. Remedies are options of
    the command line, or arguments of `fr.load`."""
    keep = 'repeats="keep"' if in_python else "--repeats keep"
    naming = replace(INTERACTIONS, option="columns") if in_python else INTERACTIONS
    said = [
        (data.merged > 0, f"merged {data.merged:,} repeated (user, item) rows; {keep} keeps them"),
        (data.repeated, f"kept {data.repeated:,} repeated (user, item) rows"),
        (data.below, f"left out {data.below:,} rows whose rating is too low or blank"),
        (
            data.known_before,
            f"left out {data.known_before:,} held-out rows whose (user, item) pair is in an earlier part",
        ),
        (data.unused, f"unused columns: {listing(data.unused)}"),
        (
            data.maybe_time,
            f"{shown(data.maybe_time)} looks like a time; use it with {naming.naming({'timestamp': data.maybe_time})}",
        ),
        (data.times is None and data.parts is None, "no time column, so held-out items are drawn at random"),
    ]
    return [f"{data.name}: {words}" for applies, words in said if applies]


def _split(data: Interactions, rule: str | None) -> tuple[str, int]:
    """What is held out, in words, and how many users have no test item."""
    default = rule is None and data.parts is None
    try:
        split = hold_out(data) if default else make_split(data, rule)
    except UserError as error:
        if rule is not None:
            raise
        return str(error), data.n_users  # the data says its parts, and one of them is empty
    words, users = split.rule, split.summary()["users_not_evaluated"]
    if not default:
        counts = (len(part) for part in (split.train, split.valid, split.test))
        words += "; rows: {:,} for training, {:,} for validation, {:,} for test".format(*counts)
    return words, users


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


def _tied_share(data: Interactions) -> float | None:
    """The share of the rows that have the same time as another row of the same user."""
    if data.times is None:
        return None
    order = np.lexsort((data.times, data.users))
    users, times = data.users[order], data.times[order]
    same = (users[1:] == users[:-1]) & (times[1:] == times[:-1])
    tied = np.zeros(len(data), bool)
    tied[1:] |= same
    tied[:-1] |= same
    return float(tied.mean())


def _ties(data: Interactions) -> int | None:
    """The number of users with several items at their newest time: there the order of ties, random or the file's,
    decides which one is held out for test."""
    if data.times is None:
        return None
    newest = np.full(data.n_users, -np.inf)
    np.maximum.at(newest, data.users, data.times)
    at_newest = np.bincount(data.users[data.times == newest[data.users]], minlength=data.n_users)
    return int(np.count_nonzero(at_newest > 1))
