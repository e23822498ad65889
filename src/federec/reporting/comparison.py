"""Several runs in one page: a table, curves of all of them, and what accuracy costs in bytes and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import fmean
from typing import Any, NamedTuple

from federec.reporting.figures import Point, lines, scatter
from federec.reporting.labels import machine_text
from federec.reporting.page import page, table

_CURVES = (
    ("Validation NDCG@10 against all items (a sample of users)", "valid_full", "ndcg@10"),
    ("Validation HR@10, sampled", "valid", "hr@10"),
    ("Test HR@10, sampled", "test", "hr@10"),
)


class Same(NamedTuple):
    """What runs have in common that share a table and figures: data, split and protocol."""

    title: str
    about: str


class Compared(NamedTuple):
    """A run of a comparison."""

    row: str
    """The row of the table that it belongs to."""
    same: Same
    result: dict[str, Any]
    history: list[dict[str, Any]]


def html_comparison(
    heads: Sequence[str], rows: Sequence[tuple[Same, Sequence[str]]], note: str, runs: Sequence[Compared]
) -> str:
    """The page: for runs with the same data, split and protocol a table and figures. `heads` and `rows` are the texts
    of the tables, a difference and its verdict in words last: the page puts these first, where a narrow screen shows
    them. `note` says what the figures in them are."""
    columns = _verdict_first(heads[1:])
    parts = [f"<p class='note'>{escape(note)}</p>"]
    for same in dict.fromkeys(run.same for run in runs):
        own = [(name, _verdict_first(cells)) for other, (name, *cells) in rows if other == same]
        some = [run for run in runs if run.same == same]
        parts.append(
            f"<h2>{escape(same.title)}</h2><p>{escape(same.about)}</p>{table(same.title, columns, own, texts=1)}"
            f"<h3>Rounds</h3><div class='figures'>{_curves(some)}</div>"
            f"<p class='note'>A dot marks the round that validation chose.</p>{_costs(some)}"
        )
    return page(f"Comparison of {len(runs)} run{'s' if len(runs) != 1 else ''}", "".join(parts))


def _verdict_first(cells: Sequence[str]) -> list[str]:
    *others, difference, verdict = cells
    return [verdict, difference, *others]


def _curves(runs: Sequence[Compared]) -> str:
    """A figure for each metric that some of the runs have, with a curve for each run and a dot at its chosen round."""
    seeds: dict[str, int] = {}
    for run in runs:
        seeds[run.row] = seeds.get(run.row, 0) + 1
    names = [f"{run.row}, seed {run.result['seed']}" if seeds[run.row] > 1 else run.row for run in runs]
    longest = max(len(run.history) for run in runs)
    best = {name: run.result["best_round"] for name, run in zip(names, runs, strict=True)}
    figures = []
    for title, part, metric in _CURVES:
        series: dict[str, list[float | None]] = {}
        for name, run in zip(names, runs, strict=True):
            values = [line.get(part, {}).get(metric) for line in run.history]
            if any(value is not None for value in values):
                series[name] = values + [None] * (longest - len(values))
        if series:
            figures.append(lines(title, range(1, longest + 1), series, best=best))
    return "".join(figures)


def _costs(runs: Sequence[Compared]) -> str:
    """NDCG@10 against bytes and against seconds, or why a figure is left out."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        if "ndcg@10" in run.result["test"].get("full", {}):
            rows.setdefault(run.row, []).append(run.result)
    if len(rows) < 2:  # nothing to compare
        return ""
    took = {row: fmean(result["seconds"]["total"] for result in results) for row, results in rows.items()}
    numbered = list(enumerate(rows))
    points, silent = [], []
    for number, row in numbered:
        sent = [megabytes for megabytes in map(megabytes_sent, rows[row]) if megabytes is not None]
        if sent:
            points.append(Point(number, row, fmean(sent), _ndcg(rows[row])))
        else:
            silent.append(row)
    figures, notes = [], []
    if len(points) > 1:
        axis = "MB a device sends in the whole run"
        figures.append(scatter(f"Test NDCG@10 against {axis}", points, axis))
    if silent:
        notes.append(f"Bytes of a device are not known, or the method is not federated: {', '.join(silent)}.")
    reason = why_not_seconds([run.result for run in runs])
    if reason:
        notes.append(f"Seconds are not compared: {reason}.")
    else:
        axis = "seconds of the whole run"
        timed = [Point(number, row, took[row], _ndcg(rows[row])) for number, row in numbered]
        figures.append(scatter(f"Test NDCG@10 against {axis}", timed, axis))
    if figures:
        notes.insert(0, "Runs on the line are beaten by no other in both directions.")
    said = "".join(f"<p class='note'>{escape(note)}</p>" for note in notes)
    return f"<h3>What accuracy costs</h3><div class='figures'>{''.join(figures)}</div>{said}"


def megabytes_sent(result: dict[str, Any]) -> float | None:
    """What a device sends in the whole run on average; None where that is not known."""
    up = result["communication"].get("up_bytes_per_device_round")
    participation = result["config"].get("participation") or 1.0
    return None if up is None else up * result["rounds"] * participation / 1e6


def why_not_seconds(results: Sequence[dict[str, Any]]) -> str:
    """Why the seconds of these runs cannot be compared; empty where they can."""
    machines = {machine_text(result) for result in results}
    if "" in machines:
        return "some runs do not say on which machine they ran, as older versions did not write it down"
    if len(machines) > 1:
        return f"the runs were made on different machines ({'; '.join(sorted(machines))})"
    engines = {f"{result['engine']['used']} on {result['config']['device']}" for result in results}
    if len(engines) > 1:
        return f"the runs were made by different engines ({'; '.join(sorted(engines))})"
    return ""


def _ndcg(results: Sequence[dict[str, Any]]) -> float:
    return fmean(result["test"]["full"]["ndcg@10"] for result in results)
