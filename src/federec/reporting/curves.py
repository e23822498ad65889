"""Curves over rounds as SVG, drawn without any library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_WIDTH, _HEIGHT = 440, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 32
_FULL = ("ndcg@10", "hr@10")
_COLOURS = ("#0969da", "#d1570a", "#1a7f37")


def svg_curves(history: list[dict[str, Any]], best_round: int) -> str:
    """Accuracy and loss, side by side, with the chosen round marked; a sentence where there is only one round."""
    if len(history) < 2:
        return "<p class=note>There was only one round.</p>"
    rounds = [line["round"] for line in history]
    accuracy = {
        f"{part} {metric}": [line[part].get(metric) for line in history]
        for part, metric in (("valid", "hr@10"), ("test", "hr@10"), ("test", "ndcg@10"))
    }
    figures = [_figure("Sampled metrics", rounds, accuracy, best_round)]
    if any("valid_full" in line for line in history):
        full = {f"valid {metric}": [line.get("valid_full", {}).get(metric) for line in history] for metric in _FULL}
        figures.insert(0, _figure("Metrics against all items (a sample of users)", rounds, full, best_round))
    if any(line["loss"] is not None for line in history):
        figures.append(_figure("Training loss", rounds, {"loss": [line["loss"] for line in history]}, best_round))
    return f"<div style='display:flex;flex-wrap:wrap;gap:1rem'>{''.join(figures)}</div>"


def _figure(title: str, rounds: list[int], series: Mapping[str, Sequence[float | None]], best_round: int) -> str:
    known = [value for values in series.values() for value in values if value is not None]
    ticks = _ticks(min(known, default=0.0), max(known, default=0.0))
    low, high = ticks[0], ticks[-1]

    def x(number: float) -> float:
        return _LEFT + (number - rounds[0]) / (rounds[-1] - rounds[0]) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = []
    for value in ticks:
        parts.append(
            f"<line x1={_LEFT} x2={_WIDTH - _RIGHT} y1={y(value):.1f} y2={y(value):.1f} stroke=currentColor "
            f"stroke-opacity=.15 /><text x={_LEFT - 6} y={y(value) + 4:.1f} text-anchor=end>{value:.3g}</text>"
        )
    for number in sorted({rounds[0], (rounds[0] + rounds[-1]) // 2, rounds[-1]}):
        parts.append(f"<text x={x(number):.1f} y={_HEIGHT - 12} text-anchor=middle>{number}</text>")
    parts.append(
        f"<line x1={x(best_round):.1f} x2={x(best_round):.1f} y1={_TOP} y2={_HEIGHT - _BOTTOM} "
        "stroke=currentColor stroke-opacity=.4 stroke-dasharray='3 3' />"
    )
    legend = []
    for colour, (name, values) in zip(_COLOURS, series.items(), strict=False):
        points = [f"{x(r):.1f},{y(v):.1f}" for r, v in zip(rounds, values, strict=True) if v is not None]
        dot = points[0].split(",") if len(points) == 1 else None
        parts.append(
            f"<circle cx={dot[0]} cy={dot[1]} r=3 fill='{colour}' />"
            if dot
            else f"<polyline points='{' '.join(points)}' fill=none stroke='{colour}' stroke-width=1.6 />"
        )
        legend.append(f"<span style='color:{colour}'>&#9644;</span> {name}")
    return (
        f"<figure style='width:{_WIDTH}px'><svg viewBox='0 0 {_WIDTH} {_HEIGHT}' width={_WIDTH} height={_HEIGHT} "
        f"style='font:11px system-ui;fill:currentColor' role=img aria-label='{title}'>{''.join(parts)}</svg>"
        f"<figcaption>{title} by round: {' &ensp; '.join(legend)}; dashed: the chosen round</figcaption></figure>"
    )


def _ticks(low: float, high: float) -> list[float]:
    """At most seven round numbers, from `low` or 0, whichever is lower, to about `high`."""
    low = min(low, 0.0)
    high = high if high > low else low + 1.0
    step = 10.0 ** math.floor(math.log10((high - low) / 5))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) < 5.01)
    return [number * step for number in range(math.floor(low / step), math.ceil(high / step - 0.01) + 1)]
