"""How a run went, round by round: curves of its metrics, its loss and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from federec.reporting.figures import lines, values_table

_MOST = 500
"""A longer run is drawn with so many of its rounds."""

History = Sequence[dict[str, Any]]
Series = dict[str, list[float | None]]

_ALL_ITEMS = "Metrics against all items (a sample of users)"


def svg_curves(history: History, best_round: int, unit: str = "device", costs: bool = False) -> str:
    """Metrics and loss over rounds, with the chosen round marked; with `costs` also seconds and bytes per `unit`, and
    all values as a table. A sentence where there is only one round."""
    if len(history) < 2:
        return "<p class='note'>There was only one round.</p>"
    every = -(-len(history) // _MOST)
    drawn = [line for number, line in enumerate(history, 1) if number % every == 0 or number in (1, best_round)]
    rounds, told = [line["round"] for line in drawn], told_series(drawn)
    if costs:
        told |= _costs(drawn, unit)
    figures = "".join(lines(title, rounds, series, best_round) for title, series in told.items())
    thinned = f"<p class='note'>Of {len(history):,} rounds, every {every}th is drawn.</p>" if every > 1 else ""
    return f"<div class='figures'>{figures}</div>{thinned}{_table(rounds, told) if costs else ''}"


def told_series(history: History) -> dict[str, Series]:
    """The curves of each figure: metrics against all items and sampled ones, then the loss, where they are known."""
    told: dict[str, Series] = {}
    if any("valid_full" in line for line in history):
        told[_ALL_ITEMS] = _metrics(history, (("valid_full", "ndcg@10"), ("valid_full", "hr@10")))
    told["Sampled metrics"] = _metrics(history, (("valid", "hr@10"), ("test", "hr@10"), ("test", "ndcg@10")))
    losses = [line.get("loss") for line in history]
    if any(loss is not None for loss in losses):
        told["Training loss"] = {"loss": losses}
    return {title: series for title, series in told.items() if series}


def _metrics(history: History, wanted: Sequence[tuple[str, str]]) -> Series:
    """The curves of these parts and metrics that have a value."""
    found = {}
    for part, metric in wanted:
        values = [line.get(part, {}).get(metric) for line in history]
        if any(value is not None for value in values):
            found[f"{part.removesuffix('_full')} {metric}"] = values
    return found


def _costs(history: History, unit: str) -> dict[str, Series]:
    told: dict[str, Series] = {}
    seconds = {
        "train": [line.get("seconds", {}).get("train") for line in history],
        "evaluate": [line.get("seconds", {}).get("evaluate") for line in history],
    }
    told["Seconds a round"] = {name: values for name, values in seconds.items() if any(values)}
    bytes_ = {way: [_kilo(line.get(f"{way}_bytes")) for line in history] for way in ("up", "down")}
    told[f"Kilobytes a round, per {unit}"] = {name: values for name, values in bytes_.items() if any(values)}
    return {title: series for title, series in told.items() if series}


def _kilo(value: float | None) -> float | None:
    return None if value is None else value / 1e3


def _table(rounds: Sequence[int], told: dict[str, Series]) -> str:
    """All values, a row for each round."""
    columns = {f"{title}: {name}": values for title, series in told.items() for name, values in series.items()}
    rows = [
        (str(number), ["" if values[place] is None else f"{values[place]:.4g}" for values in columns.values()])
        for place, number in enumerate(rounds)
    ]
    return values_table("rounds", "round", list(columns), rows)
