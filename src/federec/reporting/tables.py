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
from federec.reporting.labels import channel_text, labels

if TYPE_CHECKING:
    from pathlib import Path

    from federec.data.sets import NamedSet
    from federec.methods.base import Method
    from federec.plugins.base import Plugin
    from federec.runs.recommendation import Recommendation
    from federec.settings import Settings

_METRICS = (("sampled", "hr@10"), ("sampled", "ndcg@10"), ("full", "hr@10"), ("full", "ndcg@10"))


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
    """The outcome of one run."""
    name, data = "+".join([result["method"], *result["plugins"]]), result["data"]["name"]
    table = _table(f"{name} on {data}, {result['protocol']}", "hr@10", "ndcg@10", "mrr@10", right=(1, 2, 3))
    rows = [("test, against 99 items", result["test"]["sampled"])]
    if "sampled_light" in result["test"]:  # a federation does not know which of all users are light
        rows += [("  lightest quarter of users", result["test"]["sampled_light"])]
    rows += [(f"  with {view} item rows", metrics) for view, metrics in result["views"].items()]
    rows += [("test, against all items", result["test"]["full"])]
    cold = {"full_cold_users": "users without training items", "full_cold_items": "items that nobody trained on"}
    rows += [(f"  {text}", result["test"][name]) for name, text in cold.items() if name in result["test"]]
    for text, metrics in rows:
        table.add_row(text, *(_shown(metrics.get(key)) for key in ("hr@10", "ndcg@10", "mrr@10")))
    _print(table)
    seconds = result["seconds"]
    print(
        f"round {result['best_round']} of {result['rounds']} (chosen on validation), {seconds['total']:.1f} s, "
        f"{seconds['per_round']:.2f} s a round"
    )
    if config := result["config"].get("channel"):
        print(f"channel {channel_text(config)}")
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


def items_table(items: Iterable[Recommendation], titles: bool) -> None:
    """Recommended items, best first."""
    table = _table("", "item", "score", *(("title",) if titles else ()), right=(0, 2))
    for position, item in enumerate(items, 1):
        table.add_row(str(position), str(item.item), f"{item.score:.4g}", *((item.title,) if titles else ()))
    _print(table)


def methods_table(
    methods: Iterable[type[Method]], plugins: Iterable[type[Plugin]], offered: Iterable[tuple[str, str]] = ()
) -> None:
    """Methods and plug-ins by name; `offered` are the names and sources of what installed packages register."""
    table = _table("method", "what it is, what is shared and what is not, where it is from")
    for method in methods:
        table.add_row(method.name, f"{_first_line(method)}\n{_traffic(method())}\n{method.paper}\n")
    for plugin in plugins:
        table.add_row(f"--with {plugin.plugin}", _first_line(plugin))
    for row in offered:
        table.add_row(*row)
    _print(table)
    print("an item: each that a device touched; a simulation also holds 8 B an interaction, 0.8 kB an evaluated user")
    print("settings of one of them: federec methods NAME; of a class in a file: federec methods path/to/mine.py:Mine")


def _traffic(method: Method) -> str:
    """What is shared and what is private, and the bytes that a device keeps and sends in a round."""
    from federec.cohort.layers import ITEMS, kept_bytes
    from federec.methods.base import DeviceMethod

    if not isinstance(method, DeviceMethod):
        return "not federated: it sees every history"
    shared, private = (
        ", ".join(dict.fromkeys(name.split(".")[0].split("/")[0] for name in params)) or "nothing"
        for params in (method.shared(), method.private())
    )
    rows = [param for param in method.sends().values() if param.rows]
    layers = [param for param in method.sends().values() if not param.rows]
    sent = [f"{4 + 4 * sum(param.shape[0] for param in rows):,} B an item"] if rows else []
    if any(ITEMS in param.shape for param in rows):
        sent = ["8 B for each pair of its items"]
    sent += [f"{4 * sum(prod(param.shape) for param in layers) / 1e3:,.1f} kB"] if layers else []
    whole, item = kept_bytes(method.private())
    kept = [f"{size:,} {unit}" for size, unit in ((whole, "B"), (item, "B an item")) if size]
    # A large simulation has them once (`runs/checkpointing.py`), but three times while such a round is played again.
    held = " (a simulation three times that)" if method.view == "own" and kept else ""
    return f"shared: {shared}; private: {private}\nkept: {_sum(kept)}{held}; sent in a round: {_sum(sent)}"


def _sum(parts: list[str]) -> str:
    return " + ".join(parts) or "nothing"


def _first_line(thing: type) -> str:
    return (thing.__doc__ or "").strip().partition("\n")[0]


def settings_table(name: str, thing: type[Settings]) -> None:
    """The settings of a method or plug-in, field by field."""
    print(f"{name}: {_first_line(thing)}")
    if not thing.model_fields:
        print("it has no settings")
        return
    table = _table("--set", "default", "")
    for field, info in thing.model_fields.items():
        default = "required" if info.is_required() else str(info.get_default(call_default_factory=True))
        table.add_row(field, default, " ".join((info.description or "").split()))
    _print(table)


def presets_table(presets: dict[str, dict[str, Any]]) -> None:
    """Settings found for data sets."""
    if presets:
        table = _table("--preset", "settings")
        for name, settings in presets.items():
            table.add_row(name, ", ".join(f"{key}={value}" for key, value in settings.items()))
        _print(table)


def sets_table(status: Iterable[tuple[NamedSet, Path | None]]) -> None:
    """Named sets and where they are."""
    table = _table("set", "users", "items", "rows", "where", right=(1, 2, 3))
    for known, path in status:
        get = f"federec data get {known.name}"
        where = "built in" if known.built_in else str(path) if path else f"not here: {get}"
        table.add_row(known.name, f"{known.users:,}", f"{known.items:,}", f"{known.rows:,}", where)
    _print(table)


def summary_table(summary: dict[str, Any]) -> None:
    """Names and their values, one a line."""
    table = _table("", "")
    table.show_header = False
    for key, value in summary.items():
        table.add_row(key.replace("_", " "), plain(value))
    _print(table)


def check_table(checks: Iterable[tuple[str, str, str]]) -> None:
    """What was checked, what was found, and the command that repairs it."""
    table = _table("", "found", "to mend")
    for check in checks:
        table.add_row(*check)
    _print(table)


def verdicts_table(verdicts: Iterable[tuple[str, str, str]]) -> None:
    """Properties of a method: what was checked, whether it holds, what was seen."""
    table = _table("check", "", "seen")
    for verdict in verdicts:
        table.add_row(*verdict)
    _print(table)


def _shown(value: float | None) -> str:
    """A metric; no device told it where there is none."""
    return "-" if value is None else f"{value:.4f}"
