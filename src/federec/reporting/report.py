"""The report of a run: one HTML file that needs no other files."""

from __future__ import annotations

from html import escape
from typing import Any

from federec.reporting.curves import svg_curves
from federec.reporting.labels import channel_text

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d0d7de; --soft: #57606a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d; --soft: #9198a1; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } th, td { padding: .25rem .9rem .25rem 0; text-align: left; }
th { vertical-align: top; } tr { border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
p.note, figcaption { color: var(--soft); } figure { margin: 0; max-width: 100%; } svg { max-width: 100%; }
"""

_INSIDE = """
.federec th, .federec td { text-align: left !important; } .federec td.n, .federec th.n { text-align: right !important; }
.federec figure { margin: 0; max-width: 100%; } .federec svg { max-width: 100%; }
"""
"""The style of a part of another page, which has its own colours."""

HEADLINES = (("full", "ndcg@10"), ("sampled", "hr@10"))
"""The figures that stand for a run where there is no space for more."""

_RANKINGS = {
    "full": "against all items",
    "fresh_full": "against all items, with a fresh history",
    "full_light": "against all items, lightest quarter of users",
    "full_cold_users": "against all items, users without a training item",
    "full_cold_items": "against all items, items that nobody trained on",
    "sampled": "sampled: against 99 items",
    "fresh_sampled": "sampled, with a fresh history",
    "sampled_light": "sampled, lightest quarter of users",
}
_SHOWN = ("ndcg@10", "hr@10", "mrr@10", "hr@5", "hr@20", "coverage@10", "gini@10")


def _settings(result: dict[str, Any]) -> dict[str, object]:
    """What was run, in words."""
    data, seconds, config = result["data"], result["seconds"], result["config"]
    return {
        "Data": f"{data['name']}: {data['users']:,} users, {data['items']:,} items, "
        f"{data['interactions']:,} interactions",
        "Columns": _columns(data),
        "Split": data.get("split", "last item by time or, without times, random"),
        "Protocol": result["protocol"],
        "Round": f"{result['best_round']} of {result['rounds']}, chosen by validation {selected_by(result)}",
        "Seed": result["seed"],
        "Devices": f"{config['participation']:.0%} of them per round, on {config['device']}",
        "Time": f"{seconds['total']:.1f} s, {seconds['per_round']:.2f} s per round; "
        f"peak memory {result['peak_rss_mb']:.0f} MB",
        "Traffic": _traffic(result["communication"]),
        "Channel": channel_text(config.get("channel") or ()) or "none: updates leave a device as they are",
        "Settings": ", ".join(f"{key}={value}" for key, value in config["settings"].items()) or "none",
        "Versions": ", ".join(f"{key} {value}" for key, value in result["versions"].items()),
    }


def _columns(data: dict[str, Any]) -> str:
    """What the columns of the source were read as."""
    roles = [f"{role}: {column}" for role, column in data.get("columns", {}).items()]
    unused = data.get("unused_columns")
    return "; ".join([", ".join(roles) or "known", *([f"unused: {', '.join(unused)}"] if unused else [])])


def selected_by(result: dict[str, Any]) -> str:
    """The metric that picked the round. Versions that did not write it down chose by sampled ranking."""
    return str(result.get("selection", {}).get("metric", "sampled.hr@10"))


def _rows(settings: dict[str, object]) -> str:
    return "".join(f"<tr><th>{key}</th><td>{escape(str(value))}</td></tr>" for key, value in settings.items())


def html_report(result: dict[str, Any], history: list[dict[str, Any]]) -> str:
    """The report: what was run, the tables, the curves."""
    name, data = escape("+".join([result["method"], *result["plugins"]])), result["data"]
    rows = _rows(_settings(result))
    leak = (
        "<p class=note>Under <b>paper</b> held-out items are never drawn as training negatives. That leaks the "
        "answer and flatters every figure here; compare methods under <b>clean</b>.</p>"
        if result["protocol"] == "paper"
        else ""
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{name} on {escape(data['name'])}</title><style>{_STYLE}</style>"
        f"<h1>{name} on {escape(data['name'])}</h1><table>{rows}</table>{leak}"
        f"<h2>Test</h2>{_metrics(result['test'])}<h2>Validation</h2>{_metrics(result['valid'])}"
        f"{_views(result['views'])}<h2>Rounds</h2>{svg_curves(history, result['best_round'])}"
        f"{_notes(history, result['best_round'])}</html>\n"
    )


def html_summary(result: dict[str, Any], history: list[dict[str, Any]]) -> str:
    """What a notebook shows of a run: what was run, the metrics on test, the curves."""
    name, data = escape("+".join([result["method"], *result["plugins"]])), escape(result["data"]["name"])
    settings = _settings(result)
    rows = _rows({key: settings[key] for key in ("Data", "Split", "Protocol", "Round", "Seed", "Time", "Settings")})
    return (
        f"<style>{_INSIDE}</style><div class=federec><b>{name} on {data}</b><table>{rows}</table>"
        f"{_metrics(result['test'])}{svg_curves(history, result['best_round'])}</div>"
    )


def _traffic(communication: dict[str, float | None]) -> str:
    per = "device" if "up_bytes_per_device_round" in communication else "node"
    up, down = (communication[f"{way}_bytes_per_{per}_round"] for way in ("up", "down"))
    if up is None or down is None:
        return "none: the method is not federated, it sees all histories"
    hub = f" of {communication['users_per_node']:.3g} users" if per == "node" else ""
    return f"{up / 1e3:,.1f} kB up, {down / 1e3:,.1f} kB down, per {per}{hub} and round"


def with_fresh(test: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Metrics of test by ranking; `fresh_full` and `fresh_sampled` are those with a fresh history, where known."""
    return {**test, **{f"fresh_{ranking}": metrics for ranking, metrics in test.get("fresh", {}).items()}}


def _metrics(report: dict[str, Any]) -> str:
    report = with_fresh(report)
    shown = [key for key in _SHOWN if any(key in metrics for metrics in report.values())]
    rows = [(text, report[key]) for key, text in _RANKINGS.items() if key in report]
    return _table(shown, rows)


def _views(views: dict[str, dict[str, float]]) -> str:
    if not views:
        return ""
    words = {"own": "its own, as tuned", "global": "the server's", "random": "another device's"}
    rows = [(words[view], metrics) for view, metrics in views.items()]
    return f"<h2>Test, by the item rows a device ranks with</h2>{_table(('hr@10', 'ndcg@10'), rows)}"


def _notes(history: list[dict[str, Any]], best_round: int) -> str:
    """The notes of devices and server by round; for a list, its first and last value."""
    lines = {"first": history[0], "chosen": history[best_round - 1], "last": history[-1]}
    rows: dict[str, dict[str, float]] = {}
    for when, line in lines.items():
        for name, figure in line.get("notes", {}).items():
            ends = {", first": figure[0], ", last": figure[-1]} if isinstance(figure, list) else {"": figure}
            for end, value in ends.items():
                rows.setdefault(name + end, {})[when] = value
    return f"<h2>Notes, by round</h2>{_table(tuple(lines), list(rows.items()))}" if rows else ""


def _table(columns: Any, rows: list[tuple[str, dict[str, float]]]) -> str:
    head = "".join(f"<th class=n>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr><td>{escape(text)}</td>"
        + "".join(f"<td class=n>{f'{m[c]:.4f}' if c in m else ''}</td>" for c in columns)
        + "</tr>"
        for text, m in rows
    )
    return f"<table><tr><th></th>{head}</tr>{body}</table>"
