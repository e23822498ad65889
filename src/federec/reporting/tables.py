"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from federec.data.notebook import plain
from federec.reporting.comparison import why_not_seconds
from federec.reporting.labels import (
    VIEWS,
    WHOLE,
    attack_text,
    channel_text,
    held_out_text,
    labels,
    method_name,
    privacy_text,
    rankings,
    round_text,
    seconds_text,
    with_fresh,
)

if TYPE_CHECKING:
    from pathlib import Path

    from federec.data.sets import NamedSet
    from federec.methods.base import Method
    from federec.plugins.base import Plugin
    from federec.runs.recommendation import Recommendation
    from federec.settings import Settings

Rows = list[dict[str, Any]]
"""Rows of a table as plain values, for people and for `--json`."""

_METRICS = (("full", "ndcg@10"), ("full", "hr@10"), ("sampled", "ndcg@10"), ("sampled", "hr@10"))


def _print(table: Table) -> None:
    console = Console(markup=False, emoji=False, highlight=False)  # labels of users are shown unchanged
    if not console.is_terminal:  # a pipe or a file has no width: never shorten a cell
        console.width = max(80, console.measure(table, options=console.options.update(width=10_000)).maximum)
    console.print(table)


def _table(*columns: str, right: Sequence[int] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for index, column in enumerate(columns):
        number = index in right
        table.add_column(column, justify="right" if number else "left", no_wrap=number, overflow="fold")
    return table


def run_table(result: dict[str, Any]) -> None:
    """The outcome of one run: the ranking of all items first, the sampled one after it."""
    data, test = result["data"], with_fresh(result["test"])
    columns = ("ndcg@10", "hr@10", "mrr@10")
    table = _table(f"{method_name(result)} on {data['name']}, {result['protocol']}", *columns, right=(1, 2, 3))
    named = [(kind, text) for kind, text in rankings(data).items() if kind in test]
    rows = [(f"test, {text}" if kind in WHOLE else f"  {text}", test[kind]) for kind, text in named]
    rows += [(f"  {VIEWS[view]}", metrics) for view, metrics in result["views"].items()]
    for text, metrics in rows:
        table.add_row(text, *(_shown(metrics.get(key)) for key in columns))
    _print(table)
    if held_out := held_out_text(data):
        print(f"held out: {held_out}")
    print(f"{round_text(result)}; {seconds_text(result['seconds'])}")
    if config := result["config"].get("channel"):
        print(f"channel {channel_text(config)}")
    if attack := attack_text(result):
        print(attack)
    if privacy := privacy_text(result):
        print(f"privacy {privacy}")
    if engine := result.get("engine"):  # results of older versions have none
        print(f"engine {engine['used']}: {engine['reason']}")


def compare_table(results: list[dict[str, Any]]) -> None:
    """Runs side by side. Runs that differ only by seed or protocol share a row. Each protocol has its own columns,
    or on a narrow terminal its own table."""
    rows: dict[tuple[str, ...], dict[str, dict[int, dict[str, Any]]]] = {}
    for result, label in zip(results, labels(results), strict=True):
        # Two runs with the same seed are the same run: it counts once.
        rows.setdefault(label, {}).setdefault(result["protocol"], {})[result["seed"]] = result
    protocols = sorted({result["protocol"] for result in results})
    console = Console()
    for shown in [[name] for name in protocols] if console.is_terminal and console.width < 120 else [protocols]:
        columns = ["data", "method"]
        for protocol in shown:
            columns += [f"{protocol}\nseeds", *(f"{protocol}\n{kind}\n{metric}" for kind, metric in _METRICS)]
        columns += ["s a\nround", "kB\nup"]
        table = _table(*columns, right=range(2, len(columns)))
        for (data, method, *_), by_protocol in rows.items():
            runs = [list(by_protocol.get(protocol, {}).values()) for protocol in shown]
            if any(runs):
                table.add_row(data, method, *_compared(runs))
        _print(table)
    if why_not := why_not_seconds(results):
        print(f"do not compare the seconds: {why_not}")


def _compared(by_protocol: list[list[dict[str, Any]]]) -> list[str]:
    """The cells of a row: the runs of each protocol, then what they cost."""
    cells = []
    for runs in by_protocol:
        told = ([run["test"][kind].get(metric) for run in runs] for kind, metric in _METRICS)
        values = ([value for value in each if value is not None] for each in told)
        cells += [str(len(runs) or ""), *map(_spread, values)]
    every = [run for runs in by_protocol for run in runs]
    up = [run["communication"].get("up_bytes_per_device_round") for run in every]
    known = [value / 1e3 for value in up if value is not None]
    seconds = fmean(run["seconds"]["per_round"] for run in every)
    return [*cells, f"{seconds:.2f}", f"{fmean(known):.1f}" if known else ""]


def _spread(values: list[float]) -> str:
    """Mean, and below it the standard deviation over seeds."""
    if not values:
        return ""
    return f"{fmean(values):.4f}" + (f"\n±{stdev(values):.4f}".replace("±0", "±") if len(values) > 1 else "")


def items_rows(items: Iterable[Recommendation]) -> Rows:
    """Recommended items, best first."""
    return [
        {"position": position, "item": item.item, "score": item.score, "title": item.title}
        for position, item in enumerate(items, 1)
    ]


def items_table(rows: Rows) -> None:
    """Recommended items, with a column of titles where there are any."""
    titles = any(row["title"] for row in rows)
    table = _table("", "item", "score", *(("title",) if titles else ()), right=(0, 2))
    for row in rows:
        cells = str(row["position"]), str(row["item"]), f"{row['score']:.4g}"
        table.add_row(*cells, *((row["title"] or "",) if titles else ()))
    _print(table)


def method_row(method: type[Method]) -> dict[str, Any]:
    """What a method is, shares and keeps, and where it is from."""
    return {
        "name": method.name,
        "kind": "method",
        "about": _first_line(method),
        **_traffic(method()),
        "paper": method.paper,
    }


def plugin_row(plugin: type[Plugin]) -> dict[str, Any]:
    """What a plug-in is."""
    return {"name": plugin.plugin, "kind": "plug-in", "about": _first_line(plugin)}


def methods_table(rows: Rows) -> None:
    """Methods and plug-ins by name."""
    table = _table("method", "what it is, what is shared and what is not, where it is from")
    for row in rows:
        lines = [row["about"]]
        if "shared" in row:
            lines += [
                f"shared: {row['shared']}; private: {row['private']}",
                f"kept: {row['kept']}; sent in a round: {row['sent']}",
            ]
        if "paper" in row:
            lines += ["not federated: it sees every history"] if "shared" not in row else []
            lines += [row["paper"], ""]
        table.add_row(row["name"] if row["kind"] == "method" else f"--with {row['name']}", "\n".join(lines))
    _print(table)
    print("an item: each that a device touched; a simulation also holds 8 B an interaction, 0.8 kB an evaluated user")
    print("settings of one of them: federec methods NAME; of a class in a file: federec methods path/to/mine.py:Mine")


def _traffic(method: Method) -> dict[str, str]:
    """What is shared and what is private, and the bytes that a device keeps and sends in a round; nothing for a method
    that is not federated."""
    from federec.cohort.layers import ITEMS, kept_bytes
    from federec.methods.base import DeviceMethod

    if not isinstance(method, DeviceMethod):
        return {}
    shared, private = (_parts(params) for params in (method.shared(), method.private()))
    rows = [param for param in method.sends().values() if param.rows]
    wide = [param for param in method.sends().values() if not param.rows and ITEMS in param.shape]
    layers = [param for param in method.sends().values() if not param.rows and ITEMS not in param.shape]
    sent = [f"{4 + 4 * sum(param.shape[0] for param in rows):,} B an item"] if rows else []
    if any(ITEMS in param.shape for param in rows):
        sent = [f"{4 * len(rows)} B for each pair of items of the catalogue"]
    each = sum(prod(size for size in param.shape if size != ITEMS) for param in wide)
    sent += [f"{4 * each:,} B for each item of the catalogue"] if wide else []
    sent += [f"{4 * sum(prod(param.shape) for param in layers) / 1e3:,.1f} kB"] if layers else []
    whole, item = kept_bytes(method.private())
    kept = [f"{size:,} {unit}" for size, unit in ((whole, "B"), (item, "B an item")) if size]
    # A large simulation has them once (`runs/checkpointing.py`), but three times while such a round is played again.
    held = " (a simulation three times that)" if method.view == "own" and kept else ""
    return {"shared": shared, "private": private, "kept": f"{_sum(kept)}{held}", "sent": _sum(sent)}


def _parts(params: Iterable[str]) -> str:
    """Names of parameters without their layers: `mlp` for `mlp.0.weight` and `mlp.1.weight`."""
    names = dict.fromkeys(name.split(".")[0].split("/")[0] for name in params)
    return ", ".join(f"layer {name}" if name.isdigit() else name for name in names) or "nothing"


def _sum(parts: list[str]) -> str:
    return " + ".join(parts) or "nothing"


def _first_line(thing: type) -> str:
    return (thing.__doc__ or "").strip().partition("\n")[0]


def settings_row(name: str, thing: type[Settings], presets: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The settings of a method or plug-in, field by field, and its presets: settings found for data sets."""
    about = thing.described()
    settings = [
        {
            "name": field,
            "default": "required" if info.is_required() else str(info.get_default(call_default_factory=True)),
            "about": " ".join(about.get(field, "").split()),
        }
        for field, info in thing.model_fields.items()
    ]
    return {"name": name, "about": _first_line(thing), "settings": settings, "presets": presets}


def settings_table(row: dict[str, Any]) -> None:
    """What `settings_row` gives."""
    print(f"{row['name']}: {row['about']}")
    if not row["settings"]:
        print("it has no settings")
        return
    table = _table("--set", "default", "")
    for setting in row["settings"]:
        table.add_row(*setting.values())
    _print(table)
    if row["presets"]:
        table = _table("--preset", "settings")
        for name, settings in row["presets"].items():
            table.add_row(name, ", ".join(f"{key}={value}" for key, value in settings.items()))
        _print(table)


def set_row(known: NamedSet, path: Path | None) -> dict[str, Any]:
    """A named set, where it is, and how to get it if it is not here."""
    where = "built in" if known.built_in else None if path is None else str(path)
    counts = {"users": known.users, "items": known.items, "rows": known.rows}
    return {"name": known.name, **counts, "reading": known.reading, "where": where, "get": "" if where else known.get}


def sets_table(rows: Rows) -> None:
    """Named sets and where they are."""
    table = _table("set", "users", "items", "rows", "which", "where", right=(1, 2, 3))
    for row in rows:
        counts = (f"{row[key]:,}" for key in ("users", "items", "rows"))
        table.add_row(row["name"], *counts, row["reading"], row["where"] or f"not here; {row['get']}")
    _print(table)


def summary_table(summary: dict[str, Any]) -> None:
    """Names and their values, one a line."""
    table = _table("", "")
    table.show_header = False
    for key, value in summary.items():
        table.add_row(key.replace("_", " "), plain(value))
    _print(table)


def rows_table(rows: Rows, *titles: str) -> None:
    """Rows of texts, under these titles."""
    table = _table(*titles)
    for row in rows:
        table.add_row(*row.values())
    _print(table)


def _shown(value: float | None) -> str:
    """A metric; no device told it where there is none."""
    return "-" if value is None else f"{value:.4f}"
