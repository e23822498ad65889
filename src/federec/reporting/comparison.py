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


class Compared(NamedTuple):
    """A run of a comparison."""

    row: str
    """The row of the table that it belongs to."""
    group: str
    """Data, split and protocol: only runs of one group share a figure."""
    result: dict[str, Any]
    history: list[dict[str, Any]]


def html_comparison(heads: Sequence[str], rows: Sequence[Sequence[str]], note: str, runs: Sequence[Compared]) -> str:
    """The page. `heads` and `rows` are the table, `note` says what its figures are."""
    body = table("Runs", heads[1:], [(row[0], row[1:]) for row in rows], texts=2)
    parts = [f"<h2>Test</h2>{body}<p class='note'>{escape(note)}</p>"]
    for group in dict.fromkeys(run.group for run in runs):
        some = [run for run in runs if run.group == group]
        parts.append(f"<h2>{escape(group)}</h2><div class='figures'>{_curves(some)}</div>{_costs(some)}")
    return page(f"Comparison of {len(runs)} runs", "".join(parts))


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
    return "".join(figures) + "<p class='note'>A dot marks the round that validation chose.</p>"


def _costs(runs: Sequence[Compared]) -> str:
    """NDCG@10 against bytes and against seconds, or why a figure is left out."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        if "ndcg@10" in run.result["test"].get("full", {}):
            rows.setdefault(run.row, []).append(run.result)
    if not rows:
        return ""
    sent = {row: _mean([megabytes_sent(result) for result in results]) for row, results in rows.items()}
    took = {row: fmean(result["seconds"]["total"] for result in results) for row, results in rows.items()}
    points = {row: (value, _ndcg(rows[row])) for row, value in sent.items() if value is not None}
    figures, notes = [], []
    if points:
        axis = "MB a device sends in the whole run"
        figures.append(scatter(f"Test NDCG@10 against {axis}", [Point(row, *at) for row, at in points.items()], axis))
    silent = [row for row, value in sent.items() if value is None]
    if silent:
        notes.append(f"Bytes of a device are not known, or the method is not federated: {', '.join(silent)}.")
    reason = why_not_seconds([run.result for run in runs])
    if reason:
        notes.append(f"Seconds are not compared: {reason}.")
    else:
        axis = "s of the whole run"
        timed = [Point(row, seconds, _ndcg(rows[row])) for row, seconds in took.items()]
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


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
