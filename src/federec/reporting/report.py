"""The report of a run: one HTML file that needs no other files."""

from __future__ import annotations

from html import escape
from typing import Any

import yaml

from federec.reporting.curves import svg_curves
from federec.reporting.details import Example, Ranks, examples_section, items_section, users_section
from federec.reporting.figures import STYLE
from federec.reporting.labels import (
    RANKINGS,
    VIEWS,
    WHOLE,
    channel_text,
    held_out_text,
    machine_text,
    method_name,
    privacy_text,
    round_text,
    seconds_text,
    traffic_text,
    traffic_unit,
    with_fresh,
)
from federec.reporting.page import facts, page, table

_INSIDE = f"""
.federec th, .federec td {{ text-align: left !important; }}
.federec td.n, .federec th.n {{ text-align: right !important; }}
.federec .figures {{ display: flex; flex-wrap: wrap; gap: 1rem; }} .federec figure {{ width: 27rem; max-width: 100%; }}
.federec {{ {STYLE} }}
"""
"""The style of a part of another page, which has its own colours."""

_SHOWN = ("ndcg@10", "hr@10", "mrr@10", "hr@5", "hr@20", "coverage@10", "gini@10")

_PROTOCOLS = {
    "clean": "clean: training knows no more of held-out items than of any other item",
    "paper": "paper: held-out items are never drawn as training negatives",
}

_LEAK = (
    "<p class='note'>Under <b>paper</b> held-out items are never drawn as training negatives. That leaks the answer "
    "and flatters every figure here; compare methods under <b>clean</b>.</p>"
)

_SUMS = (
    "<h2>Users and items</h2><p class='note'>A federation's server only sees sums over devices. It knows no single "
    "user and no list of recommendations, so this report says nothing about them.</p>"
)


def html_report(
    result: dict[str, Any],
    history: list[dict[str, Any]],
    ranks: Ranks | None = None,
    examples: list[Example] | None = None,
) -> str:
    """The report: what was run, what came out in words and figures, how it went, what it means for users and items, and
    how to repeat it. `ranks` are those of the run, `examples` a few users by name; without them, or without what
    older versions did not write down, parts are left out."""
    known, federated = ranks or {}, "users_per_node" in result["communication"]
    unit = traffic_unit(result["communication"])
    parts = [
        _lead(result),
        _LEAK if result["protocol"] == "paper" else "",
        f"<h2>What was run</h2>{facts(_settings(result))}",
        f"<h2>Test</h2>{_metrics('Metrics on test', result['test'])}",
        f"<h2>Validation</h2>{_metrics('Metrics on validation', result['valid'])}",
        _views(result["views"]),
        f"<h2>Rounds</h2>{svg_curves(history, result['best_round'], unit, costs=True)}",
        _SUMS if federated else users_section(result, known),
        "" if federated else items_section(result, known),
        "" if federated else examples_section(known, examples),
        _notes(history, result["best_round"]),
        "" if federated else _repeat(result["config"]),
    ]
    return page(f"{method_name(result)} on {result['data']['name']}", "".join(parts))


def html_summary(result: dict[str, Any], history: list[dict[str, Any]]) -> str:
    """What a notebook shows of a run: what was run, the metrics on test, the curves."""
    name, data = escape(method_name(result)), escape(result["data"]["name"])
    settings = _settings(result)
    rows = facts({key: settings[key] for key in ("Data", "Held out", "Protocol", "Round", "Seed", "Time", "Settings")})
    return (
        f"<style>{_INSIDE}</style><div class='federec'><b>{name} on {data}</b>{rows}"
        f"{_metrics('Metrics on test', result['test'])}{svg_curves(history, result['best_round'])}</div>"
    )


def in_words(result: dict[str, Any]) -> list[str]:
    """The outcome in sentences."""
    full, sampled = (result["test"].get(ranking, {}) for ranking in WHOLE)
    data, sentences = result["data"], []
    split = str(data.get("split", ""))
    item = "the next item" if split.startswith("last item by time") else "the held-out item"
    tested = data["users"] - (data.get("users_not_evaluated") or 0)
    several = data.get("held_out", {}).get("test", 0) > tested
    if "hr@10" in full:
        share, of = _of(full["hr@10"]), f"among the ten first of {data['items']:,}"
        sentences.append(
            f"For {share} users at least one of the held-out items was {of}."
            if several
            else f"In {share} cases {item} was {of}."
        )
        if not several:
            sentences.append(f"Ten items drawn at random would have it in {_of(min(1, 10 / data['items']))} cases.")
    if "hr@10" in sampled:
        sentences.append(f"Against only 99 random items it was among the ten first in {_of(sampled['hr@10'])} cases.")
    return sentences


def _of(share: float) -> str:
    """A fraction as a number of cases."""
    for whole in (100, 1_000, 10_000):
        if share * whole >= 1:
            return f"{share * whole:.0f} of {whole:,}"
    return "0 of 100" if share == 0 else "less than 1 of 10,000"


def _lead(result: dict[str, Any]) -> str:
    """The outcome in words, and the figures that stand for it."""
    first, *others = in_words(result) or [""]
    test = result["test"]
    figures = [
        (test.get(ranking, {}).get(metric), metric.upper(), RANKINGS[ranking])
        for ranking, metric in (("full", "ndcg@10"), ("full", "hr@10"), ("sampled", "hr@10"))
    ]
    cards = "".join(
        f"<li><b>{value:.4f}</b>{metric} on test, {ranking}</li>"
        for value, metric, ranking in figures
        if value is not None
    )
    return (
        f"<p class='lead'>{escape(first)}</p><p>{escape(' '.join(others))}</p><ul class='cards'>{cards}</ul>"
        "<p class='note'>HR@10 is the share of cases in which the item is among the ten first. NDCG@10 also counts "
        "where: 1 for the first place, 0.63 for the second, 0.29 for the tenth, 0 below.</p>"
    )


def _settings(result: dict[str, Any]) -> dict[str, str]:
    """What was run, in words."""
    data, config, engine = result["data"], result["config"], result.get("engine")
    counts = f"{data['users']:,} users, {data['items']:,} items, {data['interactions']:,} interactions"
    evaluated = data.get("evaluated_users")
    return {
        "Method": method_name(result),
        "Data": f"{data['name']}: {counts}",
        "Columns": _columns(data),
        "Held out": held_out_text(data) or "last item by time or, without times, random",
        "Evaluated": f"{evaluated:,} users" if evaluated is not None else "",
        "Protocol": _PROTOCOLS.get(result["protocol"], result["protocol"]),
        "Round": round_text(result).removeprefix("round "),
        "Seed": str(result["seed"]),
        "Devices": f"{config['participation'] or 1:.0%} of them per round, on {config['device']}",
        "Time": f"{seconds_text(result['seconds'])}; peak memory {result['peak_rss_mb']:.0f} MB",
        "Engine": f"{engine['used']}: {engine['reason']}" if engine else "",
        "Machine": machine_text(result),
        "Traffic": traffic_text(result["communication"]),
        "Channel": channel_text(config.get("channel") or ()) or "none: updates leave a device as they are",
        "Privacy": privacy_text(result),
        "Settings": ", ".join(f"{key}={value}" for key, value in config["settings"].items()) or "none",
        "Versions": ", ".join(f"{key} {value}" for key, value in result["versions"].items()),
    }


def _columns(data: dict[str, Any]) -> str:
    """What the columns of the source were read as."""
    roles = ", ".join(f"{role}: {column}" for role, column in data.get("columns", {}).items())
    unused = ", ".join(data.get("unused_columns") or ())
    return "; ".join(filter(None, [roles, f"unused: {unused}" if unused else ""]))


def _metrics(about: str, report: dict[str, Any]) -> str:
    report = with_fresh(report)
    shown = [key for key in _SHOWN if any(key in metrics for metrics in report.values())]
    known = [kind for kind in RANKINGS if kind in report]
    rows = [(RANKINGS[kind] if kind in WHOLE else f" {RANKINGS[kind]}", report[kind]) for kind in known]
    return _numbers(about, shown, rows)


def _views(views: dict[str, dict[str, float]]) -> str:
    if not views:
        return ""
    rows = [(VIEWS[view], metrics) for view, metrics in views.items()]
    about = "Test, by the item rows a device ranks with"
    return f"<h2>{about}</h2>{_numbers(about, ['hr@10', 'ndcg@10'], rows)}"


def _notes(history: list[dict[str, Any]], best_round: int) -> str:
    """The notes of devices and server by round; for a list, its first and last value."""
    if not history:
        return ""
    lines = {"first": history[0], "chosen": history[best_round - 1], "last": history[-1]}
    rows: dict[str, dict[str, float]] = {}
    for when, line in lines.items():
        for name, figure in line.get("notes", {}).items():
            ends = {", first": figure[0], ", last": figure[-1]} if isinstance(figure, list) else {"": figure}
            for end, value in ends.items():
                rows.setdefault(name + end, {})[when] = value
    return f"<h2>Notes, by round</h2>{_numbers('Notes, by round', list(lines), list(rows.items()))}" if rows else ""


def _numbers(about: str, columns: list[str], rows: list[tuple[str, dict[str, float]]]) -> str:
    cells = [(name, [f"{values[key]:.4f}" if key in values else "" for key in columns]) for name, values in rows]
    return table(about, columns, cells)


def _repeat(config: dict[str, Any]) -> str:
    """The command that repeats the run, and the settings it needs."""
    text = escape(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    note = (
        "The data was in memory, so only a program that has it can repeat the run, with these settings."
        if str(config.get("data", "")).startswith("<")
        else "Run this in the folder of the run, or save these settings as config.yaml first."
    )
    return (
        f"<h2>Repeat it</h2><p>{note}</p><pre tabindex='0'>federec train --config config.yaml</pre>"
        f"<details><summary>config.yaml</summary><pre tabindex='0'>{text}</pre></details>"
    )
