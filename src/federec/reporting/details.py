"""What a run's ranks and counts say of its users and items. No figure here is of a single user, except the lists of a
few example users."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, NamedTuple

import torch
from torch import Tensor

from federec.data.interactions import Interactions
from federec.evaluation.metrics import user_metrics
from federec.reporting.figures import bars

Ranks = Mapping[str, Tensor]
"""The tensors of `ranks.safetensors`; see `runs.loop.Review`."""

_OLD = "Left out: the version of federec that made this run did not keep what this needs."


class Group(NamedTuple):
    """Users or cases that are counted together."""

    name: str
    value: float


class Tenth(NamedTuple):
    """A tenth of all items: its share of the training interactions and of the recommendations."""

    interactions: float
    recommended: float


def positions_of(ranks: Tensor, n_items: int) -> list[Group]:
    """The share of held-out items at each group of positions; `ranks` count from 0."""
    firsts, last = [1], 0
    for end in (1, 5, 10, *(step * 10**power for power in range(1, 12) for step in (2, 5, 10))):
        last = min(end, n_items)
        if last == n_items:
            break
        firsts.append(last + 1)
    ends = [*(first - 1 for first in firsts[1:]), last]
    found = torch.bucketize(ranks.long() + 1, torch.tensor(ends)).clamp(max=len(ends) - 1)
    shares = (torch.bincount(found, minlength=len(ends)).double() / max(1, len(ranks))).tolist()
    names = [f"{first:,}" if first == end else f"{first:,} to {end:,}" for first, end in zip(firsts, ends, strict=True)]
    return [Group(*each) for each in zip(names, shares, strict=True)]


def quarters(ranks: Ranks) -> list[Group]:
    """NDCG@10 of each quarter of the users by number of training items, lightest first; the name is that number."""
    each = user_metrics(ranks["test full"], ranks.get("test owner"), len(ranks["test sampled"]))["ndcg@10"]
    tested = (~each.isnan()).nonzero().flatten()
    counts = ranks["training items"][tested]
    order = counts.argsort(stable=True)
    found = []
    for some in order.tensor_split(4):
        few, most = int(counts[some[0]]), int(counts[some[-1]])
        found.append(Group(f"{few:,}" if few == most else f"{few:,} to {most:,}", float(each[tested[some]].mean())))
    return found


def tenths(ranks: Ranks) -> list[Tenth]:
    """All items in ten parts, those with the most training interactions first."""
    interactions, recommended = ranks["interactions"].double(), ranks["recommended"].double()
    order = interactions.argsort(descending=True, stable=True)
    shares = [counts[order] / counts.sum().clamp(min=1) for counts in (interactions, recommended)]
    parts = zip(*(share.tensor_split(10) for share in shares), strict=True)
    return [Tenth(float(trained.sum()), float(listed.sum())) for trained, listed in parts]


def users_section(result: dict[str, Any], ranks: Ranks) -> str:
    """Where held-out items ended, and light users against heavy ones."""
    n_items, found = result["data"]["items"], ranks.get("test full")
    if found is None or not len(found):
        return ""
    shares = positions_of(found[found >= 0], n_items)
    title = f"Position of the held-out item among {n_items:,}"
    figures = [_bars(title, "share of held-out items", shares, "%", "position, from")]
    reason = ""
    if "training items" not in ranks:
        reason = f"<p class='note'>Light and heavy users: {_OLD}</p>"
    elif len(ranks["test sampled"]) >= 4:
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
    if "recommended" in ranks and len(ranks["recommended"]) >= 10:
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


def examples_section(ranks: Ranks, data: Interactions | None) -> str:
    """The ten first items of a few users."""
    if not ranks:
        return ""
    if "examples" not in ranks:
        return f"<h2>Examples</h2><p class='note'>{_OLD}</p>"
    if data is None:
        return "<h2>Examples</h2><p class='note'>Left out: the data of this run is not here, or has changed.</p>"
    users = "".join(_example(data, *row) for row in ranks["examples"].tolist())
    return (
        "<h2>Examples</h2><p>The ten first items of a few users, those with a short history first, from all items that "
        "are not in their training and validation data.</p><p class='note'>The ids of these users are the only data of "
        "single users in this report: the run simulated their devices on one machine. If they are real people, remove "
        f"this section before you publish the report.</p><div class='users'>{users}</div>"
    )


def _example(data: Interactions, user: int, *items: int) -> str:
    labels = [str(data.item_label(item)) for item in items if item >= 0]
    listed = "".join(f"<li>{escape(data.titles.get(label) or label)}</li>" for label in labels)
    return f"<section><h3>User {escape(str(data.user_ids[user]))}</h3><ol>{listed}</ol></section>"


def _bars(title: str, what: str, groups: list[Group], unit: str, axis: str) -> str:
    return bars(title, [group.name for group in groups], {what: [group.value for group in groups]}, unit, axis)
