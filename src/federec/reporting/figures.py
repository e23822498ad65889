"""Lines, bars and points as SVG, drawn without any library. Every figure is readable without a script: legends switch
series with check boxes and style sheets, bars and points carry their values as titles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 440, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 18, 44
_COLOURS = ("#0969da", "#c4500a", "#1a7f37", "#8250df", "#bf3989", "#8a6100", "#1b7c83", "#6e7781")
"""Each has a contrast of at least 3 with white and with the dark page."""
_DASHES = ("", "7 3", "2 2", "9 3 2 3")
SERIES = 40
"""The style sheet can switch so many series of a figure; more share a switch."""

STYLE = """
figure { margin: 0; min-width: 0; } figure svg { width: 100%; max-width: 36rem; height: auto; font: 12px system-ui,
sans-serif; fill: currentColor; } figcaption { font-weight: 600; } figure .legend { display: flex; flex-wrap: wrap;
gap: 0 1rem; } figure .legend label { white-space: normal; overflow-wrap: anywhere; font-size: .85rem; } figure .legend
svg { width: 1.6rem; height: .6rem; } figure .hair { stroke: currentColor; visibility: hidden; }
""" + "".join(f"figure:has(.t{k}:not(:checked)) .s{k}{{display:none}}" for k in range(SERIES))
"""What figures need of the page that they are in."""

Scale = Callable[[float], float]


class Point(NamedTuple):
    """A point of `scatter`."""

    number: int
    """It decides the colour, so that a run has the same one in several figures."""
    name: str
    x: float
    y: float


def lines(
    title: str,
    rounds: Sequence[int],
    series: Mapping[str, Sequence[float | None]],
    chosen: int | None = None,
    best: Mapping[str, int] | None = None,
) -> str:
    """Curves over rounds. `chosen` is marked by a vertical line, `best` has the round of each curve that gets a dot. A
    curve passes over rounds without a value."""
    known = [value for values in series.values() for value in values if value is not None]
    ticks = ticks_of(min(known, default=0.0), max(known, default=0.0))
    x = _scale(rounds[0], max(rounds[-1], rounds[0] + 1), _LEFT, WIDTH - _RIGHT)
    y = _scale(ticks[0], ticks[-1], HEIGHT - _BOTTOM, _TOP)
    shown = [place for place in range(len(rounds)) if any(values[place] is not None for values in series.values())]
    parts = [_grid(ticks, y), _axis_name("round")]
    for number in sorted({rounds[0], (rounds[0] + rounds[-1]) // 2, rounds[-1]}):
        parts.append(_text(x(number), HEIGHT - _BOTTOM + 15, str(number)))
    if chosen is not None:
        at, anchor = x(chosen), "end" if x(chosen) > WIDTH / 2 else "start"
        parts.append(
            f"<line x1='{at:.1f}' x2='{at:.1f}' y1='{_TOP}' y2='{HEIGHT - _BOTTOM}' stroke='currentColor' "
            "stroke-opacity='.6' stroke-dasharray='3 3'/>" + _text(at, _TOP - 6, f"chosen: {chosen}", anchor)
        )
    for index, (name, values) in enumerate(series.items()):
        points = [(x(r), y(v)) for r, v in zip(rounds, values, strict=True) if v is not None]
        drawn = f"<polyline points='{' '.join(f'{a:.1f},{b:.1f}' for a, b in points)}' fill='none' {_stroke(index)}/>"
        if len(points) == 1:
            drawn = _dot(*points[0], index)
        value = dict(zip(rounds, values, strict=True)).get((best or {}).get(name, 0))
        if value is not None:
            drawn += _dot(x((best or {})[name]), y(value), index)
        told = " ".join("-" if values[place] is None else f"{values[place]:.4g}" for place in shown)
        parts.append(f"<g class='s{index % SERIES}' data-name='{escape(name)}' data-values='{told}'>{drawn}</g>")
    parts.append(f"<line class='hair' y1='{_TOP}' y2='{HEIGHT - _BOTTOM}' stroke-opacity='.4'/>")
    ends = f"data-first='{rounds[0]}' data-last='{rounds[-1]}' data-from='{_LEFT}' data-to='{WIDTH - _RIGHT}'"
    hover = f" data-rounds='{' '.join(str(rounds[place]) for place in shown)}' {ends}"
    return _figure(title, "".join(parts), dict(enumerate(series)), hover)


def bars(title: str, names: Sequence[str], series: Mapping[str, Sequence[float]], unit: str, axis: str) -> str:
    """Bars side by side for each name, with their values in a table below. `unit` is `%` for fractions."""
    factor, after = (100, " %") if unit == "%" else (1, "")
    shown = {name: [value * factor for value in values] for name, values in series.items()}
    ticks = ticks_of(0, max(value for values in shown.values() for value in values))
    y = _scale(ticks[0], ticks[-1], HEIGHT - _BOTTOM, _TOP)
    step = (WIDTH - _LEFT - _RIGHT) / len(names)
    width = step * 0.8 / len(series)
    parts = [_grid(ticks, y, after), _axis_name(axis)]
    for place, name in enumerate(names):
        label = name.partition(" to ")[0].replace(",", "") if len(names) > 5 else name
        parts.append(_text(_LEFT + step * (place + 0.5), HEIGHT - _BOTTOM + 15, label))
        for index, (what, values) in enumerate(shown.items()):
            value = values[place]
            words = f"{name}: {what} {_number(value)}{after}"
            parts.append(
                f"<rect class='s{index}' x='{_LEFT + step * (place + 0.1) + width * index:.1f}' y='{y(value):.1f}' "
                f"width='{width:.1f}' height='{y(0) - y(value):.1f}' fill='{_COLOURS[index]}'>"
                f"<title>{escape(words)}</title></rect>"
            )
    cells = [
        (name, [f"{_number(values[place])}{after}" for values in shown.values()]) for place, name in enumerate(names)
    ]
    table = values_table(title, axis, list(series), cells)
    return _figure(title, "".join(parts), dict(enumerate(series)), below=table, filled=True)


def scatter(title: str, points: Sequence[Point], x_axis: str) -> str:
    """Points with names; those that no other point beats in both directions (less of x, more of y) are joined."""
    few, most = min(point.x for point in points), max(point.x for point in points)
    logarithmic = few > 0 and most > 20 * few
    power = math.log10 if logarithmic else float
    marks = _powers(few, most) if logarithmic else ticks_of(0, most)
    x = _scale(power(marks[0]), power(marks[-1]), _LEFT, WIDTH - _RIGHT - 8)
    ticks = ticks_of(0, max(point.y for point in points))
    y = _scale(ticks[0], ticks[-1], HEIGHT - _BOTTOM, _TOP)
    parts = [_grid(ticks, y), _axis_name(x_axis)]
    parts += [_text(x(power(mark)), HEIGHT - _BOTTOM + 15, _number(mark)) for mark in marks]
    front = " ".join(f"{x(power(point.x)):.1f},{y(point.y):.1f}" for point in pareto(points))
    parts.append(f"<polyline points='{front}' fill='none' stroke='currentColor' stroke-opacity='.4'/>")
    names, cells = {}, []
    places = _label_places([(x(power(point.x)), y(point.y)) for point in points])
    for point, place in zip(points, places, strict=True):
        words = f"{point.name}: {_number(point.x)} {x_axis}, {point.y:.4f}"
        parts.append(
            f"<g class='s{point.number % SERIES}'>{_dot(x(power(point.x)), y(point.y), point.number, words)}"
            f"{_text(*place, str(point.number + 1))}</g>"
        )
        names[point.number] = f"{point.number + 1} {point.name}"
        cells.append((names[point.number], [_number(point.x), f"{point.y:.4f}"]))
    table = values_table(title, "", [x_axis, "test NDCG@10"], cells)
    return _figure(title, "".join(parts), names, below=table, filled=True)


def _label_places(dots: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Where the number of each dot is written: above it, or where no other dot and no earlier number is near."""
    taken = [(x, y + 4) for x, y in dots]  # a text stands on its y, a dot is around it
    places: list[tuple[float, float]] = []
    for x, y in dots:
        around = [(x, y - 8), (x, y + 17), (x - 13, y + 4), (x + 13, y + 4)]
        free = [spot for spot in around if all(math.dist(spot, other) > 11 for other in taken)]
        places.append((free or around)[0])
        taken.append(places[-1])
    return places


def pareto(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats: from the smallest x on, those with more y than all before."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.x, -point.y)):
        if not front or point.y > front[-1].y:
            front.append(point)
    return front


def values_table(title: str, first: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """The values of a figure as a table that the reader can open."""
    head = "".join(f"<th scope='col' class='n'>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr><th scope='row'>{escape(name)}</th>{''.join(f'<td class=n>{escape(cell)}</td>' for cell in cells)}</tr>"
        for name, cells in rows
    )
    corner = f"<th scope='col'>{escape(first)}</th>" if first else "<td></td>"
    table = f"<table><thead><tr>{corner}{head}</tr></thead><tbody>{body}</tbody></table>"
    return (
        f"<details><summary>Values as a table</summary><div class='scroll' role='group' tabindex='0' "
        f"aria-label='Values: {escape(title)}'>{table}</div></details>"
    )


def ticks_of(low: float, high: float) -> list[float]:
    """At most seven round numbers, from `low` or 0, whichever is lower, to about `high`."""
    low = min(low, 0.0)
    high = high if high > low else low + 1.0
    step = 10.0 ** math.floor(math.log10((high - low) / 5))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) < 5.01)
    return [number * step for number in range(math.floor(low / step), math.ceil(high / step - 0.01) + 1)]


def _powers(few: float, most: float) -> list[float]:
    """Powers of ten that hold these values; every other one where they would be many."""
    first, last = math.floor(math.log10(few)), math.ceil(math.log10(most))
    return [10.0**power for power in range(first, last + 1, 1 if last - first < 7 else 2)] + (
        [10.0**last] if last - first >= 7 and (last - first) % 2 else []
    )


def _scale(low: float, high: float, start: float, end: float) -> Scale:
    return lambda value: start + (value - low) / ((high - low) or 1) * (end - start)


def _grid(ticks: Sequence[float], y: Scale, after: str = "") -> str:
    return "".join(
        f"<line x1='{_LEFT}' x2='{WIDTH - _RIGHT}' y1='{y(value):.1f}' y2='{y(value):.1f}' stroke='currentColor' "
        f"stroke-opacity='.15'/>{_text(_LEFT - 6, y(value) + 4, f'{value:.3g}{after}', 'end')}"
        for value in ticks
    )


def _axis_name(name: str) -> str:
    return _text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 8, name)


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{escape(text)}</text>"


def _stroke(index: int) -> str:
    dash = _DASHES[(index + index // len(_COLOURS)) % len(_DASHES)]
    dashes = f" stroke-dasharray='{dash}'" if dash else ""
    return f"stroke='{_COLOURS[index % len(_COLOURS)]}' stroke-width='1.8'{dashes}"


def _dot(x: float, y: float, index: int, words: str = "") -> str:
    title = f"<title>{escape(words)}</title>" if words else ""
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{_COLOURS[index % len(_COLOURS)]}'>{title}</circle>"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _figure(
    title: str, inside: str, names: Mapping[int, str], attributes: str = "", below: str = "", filled: bool = False
) -> str:
    """A figure with its caption above and, for several series, a legend that switches them. `names` has their names by
    number. The legend shows lines, or with `filled` only colours."""
    label = escape(title) + (f": {escape(', '.join(names.values()))}" if len(names) > 1 else "")
    drawing = f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{label}'{attributes}>{inside}</svg>"
    legend = "".join(_entry(index, name, filled) for index, name in names.items()) if len(names) > 1 else ""
    entries = f"<div class='legend'>{legend}</div>" if legend else ""
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawing}{entries}{below}</figure>"


def _entry(index: int, name: str, filled: bool) -> str:
    colour = f"<rect x='6' width='14' height='8' fill='{_COLOURS[index % len(_COLOURS)]}'/>"
    inside = colour if filled else f"<line x1='0' x2='26' y1='4' y2='4' {_stroke(index)}/>"
    sample = f"<svg viewBox='0 0 26 8' aria-hidden='true'>{inside}</svg>"
    return (
        f"<label><input type='checkbox' class='t{index % SERIES}' checked='checked'/> {sample} {escape(name)}</label>"
    )
