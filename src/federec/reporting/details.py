"""What a run's ranks and counts say of its users and items. No figure here is of a single user, except the lists of a
few example users."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from federec.data.interactions import Interactions
from federec.reporting.figures import bars

Ranks = Mapping[str, ArrayLike]
"""The content of `ranks.safetensors`, as tensors or arrays; see `runs.loop.Review`. This file uses NumPy, so that
`federec report` does not wait for torch."""

_OLD = "Left out: the version of federec that made this run did not keep what this needs."


class Group(NamedTuple):
    """Users or cases that are counted together."""

    name: str
    value: float


class Tenth(NamedTuple):
    """A tenth of all items: its share of the training interactions and of the recommendations."""

    interactions: float
    recommended: float


class Example(NamedTuple):
    """A user and the titles, or ids, of the first items of its list."""

    user: str
    items: list[str]


def positions_of(ranks: ArrayLike, n_items: int) -> list[Group]:
    """The share of held-out items at each group of positions; `ranks` count from 0."""
    firsts, last = [1], 0
    for end in (1, 5, 10, *(step * 10**power for power in range(1, 12) for step in (2, 5, 10))):
        last = min(end, n_items)
        if last == n_items:
            break
        firsts.append(last + 1)
    ends = [*(first - 1 for first in firsts[1:]), last]
    found = np.searchsorted(ends, np.asarray(ranks) + 1).clip(max=len(ends) - 1)
    shares = (np.bincount(found, minlength=len(ends)) / max(1, len(found))).tolist()
    names = [f"{first:,}" if first == end else f"{first:,} to {end:,}" for first, end in zip(firsts, ends, strict=True)]
    return [Group(*each) for each in zip(names, shares, strict=True)]


def quarters(ranks: Ranks) -> list[Group]:
    """NDCG@10 of each quarter of the users by number of training items, lightest first; the name is that number."""
    each = _ndcg(ranks)
    tested = np.flatnonzero(~np.isnan(each))
    counts = np.asarray(ranks["training items"])[tested]
    order = counts.argsort(kind="stable")
    found = []
    for some in np.array_split(order, 4):
        few, most = int(counts[some[0]]), int(counts[some[-1]])
        found.append(Group(f"{few:,}" if few == most else f"{few:,} to {most:,}", float(each[tested[some]].mean())))
    return found


def _ndcg(ranks: Ranks, k: int = 10) -> NDArray[np.float64]:
    """NDCG@k of each user, as `evaluation.metrics` defines it; not a number for a user without a test item."""
    found, users = np.asarray(ranks["test full"]), len(np.asarray(ranks["test sampled"]))
    owner = np.asarray(ranks.get("test owner", np.arange(users)))[found >= 0]
    found = found[found >= 0]
    gained = np.bincount(owner, (found < k) / np.log2(found + 2.0), users)
    held, ideal = np.bincount(owner, minlength=users), (1 / np.log2(np.arange(k) + 2)).cumsum()
    return np.where(held > 0, gained / ideal[held.clip(1, k) - 1], np.nan)


def tenths(ranks: Ranks) -> list[Tenth]:
    """All items in ten parts, those with the most training interactions first."""
    interactions, recommended = np.asarray(ranks["interactions"]), np.asarray(ranks["recommended"])
    order = (-interactions).argsort(kind="stable")
    shares = [counts[order] / max(1, counts.sum()) for counts in (interactions, recommended)]
    parts = zip(*(np.array_split(share, 10) for share in shares), strict=True)
    return [Tenth(float(trained.sum()), float(listed.sum())) for trained, listed in parts]


def users_section(result: dict[str, Any], ranks: Ranks) -> str:
    """Where held-out items ended, and light users against heavy ones."""
    n_items, found = result["data"]["items"], np.asarray(ranks.get("test full", ()))
    if not len(found):
        return ""
    shares = positions_of(found[found >= 0], n_items)
    title = f"Position of the held-out item among {n_items:,}"
    figures = [_bars(title, "share of held-out items", shares, "%", "position, from")]
    reason = ""
    if "training items" not in ranks:
        reason = f"<p class='note'>Light and heavy users: {_OLD}</p>"
    elif len(np.asarray(ranks["test sampled"])) >= 4:
        axis = "training items of a user, in four quarters of users"
        figures.append(_bars("Light and heavy users: NDCG@10", "NDCG@10", quarters(ranks), "", axis))
    return f"<h2>Users</h2><div class='figures'>{''.join(figures)}</div>{reason}"


def items_section(result: dict[str, Any], ranks: Ranks) -> str:
    """Which items are recommended, against how popular they are."""
    lists = result["test"].get("full", {})
    sentences = []
    if "coverage@10" in lists:
        sentences.append(
            f"The ten first items of all users together are {lists['coverage@10']:.0%} of all items (coverage@10). "
            f"Gini@10 is {lists['gini@10']:.2f}: 0 means that all items are recommended equally often, 1 that only one "
            "is."
        )
    figure = ""
    if "recommended" in ranks and len(np.asarray(ranks["recommended"])) >= 10:
        parts = tenths(ranks)
        sentences.insert(
            0,
            f"The most popular tenth of the items has {parts[0].interactions:.0%} of the training interactions and "
            f"{parts[0].recommended:.0%} of the recommendations.",
        )
        series = {
            "share of training interactions": [part.interactions for part in parts],
            "share of recommendations": [part.recommended for part in parts],
        }
        names = [str(number) for number in range(1, 11)]
        figure = bars("Popular items", names, series, "%", "tenth of the items, 1 is the most popular")
        figure = f"<div class='figures'>{figure}</div>"
    elif ranks and "recommended" not in ranks:
        sentences.append(f"Popularity: {_OLD}")
    text = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return f"<h2>Items</h2>{text}{figure}" if text or figure else ""


def examples_of(ranks: Ranks, data: Interactions) -> list[Example]:
    """The example users of a run, by name."""
    codes = np.asarray(ranks.get("examples", ())).tolist()
    labels = [(user, [str(data.item_label(item)) for item in items if item >= 0]) for user, *items in codes]
    return [Example(str(data.user_ids[user]), [data.titles.get(each) or each for each in row]) for user, row in labels]


def examples_section(ranks: Ranks, examples: list[Example] | None) -> str:
    """The ten first items of a few users."""
    if not ranks:
        return ""
    if "examples" not in ranks:
        return f"<h2>Examples</h2><p class='note'>{_OLD}</p>"
    if examples is None:
        return "<h2>Examples</h2><p class='note'>Left out: this page was made without the data of the run.</p>"
    users = "".join(_example(*example) for example in examples)
    return (
        "<h2>Examples</h2><p>The ten first items of a few users, those with a short history first, from all items that "
        "are not in their training and validation data.</p><p class='note'>The ids of these users are the only data of "
        "single users in this report: the run simulated their devices on one machine. If they are real people, remove "
        f"this section before you publish the report.</p><div class='users'>{users}</div>"
    )


def _example(user: str, items: list[str]) -> str:
    listed = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<section><h3>User {escape(user)}</h3><ol>{listed}</ol></section>"


def _bars(title: str, what: str, groups: list[Group], unit: str, axis: str) -> str:
    return bars(title, [group.name for group in groups], {what: [group.value for group in groups]}, unit, axis)
