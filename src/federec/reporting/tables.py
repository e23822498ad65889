"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from federec.data.sets import NamedSet
    from federec.methods.base import Method
    from federec.plugins.base import Plugin
    from federec.runtimes.run import Recommendation

_METRICS = (("sampled", "hr@10"), ("sampled", "ndcg@10"), ("full", "hr@10"), ("full", "ndcg@10"))


def _print(table: Table) -> None:
    console = Console()
    if not console.is_terminal:  # a pipe or a file has no width: never cut a cell
        console = Console(width=max(80, console.measure(table, options=console.options.update(width=1000)).maximum))
    console.print(table)


def _table(*columns: str, right: Sequence[int] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index in right else "left", overflow="fold")
    return table


def run_table(result: dict[str, Any]) -> None:
    """The outcome of one run."""
    name, data = "+".join([result["method"], *result["plugins"]]), result["data"]["name"]
    table = _table(f"{name} on {data}, {result['protocol']}", "hr@10", "ndcg@10", "mrr@10", right=(1, 2, 3))
    rows = [("test, against 99 items", result["test"]["sampled"]), ("test, against all items", result["test"]["full"])]
    rows += [("  lightest quarter of users", result["test"]["sampled_light"])]
    rows += [(f"  with {view} item rows", metrics) for view, metrics in result["views"].items()]
    for text, metrics in rows:
        table.add_row(text, *(f"{metrics[key]:.4f}" for key in ("hr@10", "ndcg@10", "mrr@10")))
    _print(table)
    seconds = result["seconds"]
    print(
        f"round {result['best_round']} of {result['rounds']} (chosen on validation), {seconds['total']:.1f} s, "
        f"{seconds['per_round']:.2f} s a round"
    )


def compare_table(results: list[dict[str, Any]]) -> None:
    """Runs side by side. Runs that differ by seed or protocol alone share a row; each protocol has its columns."""
    protocols = sorted({result["protocol"] for result in results})
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for result, label in zip(results, _labels(results), strict=True):
        groups.setdefault(label, {}).setdefault(result["protocol"], []).append(result)
    names = [f"{protocol} {kind} {metric}" for protocol in protocols for kind, metric in _METRICS]
    columns = ("data", "method", *(f"{protocol} seeds" for protocol in protocols), *names, "s/round", "kB up")
    table = _table(*columns, right=range(2, len(columns)))
    for label, by_protocol in groups.items():
        every = [result for runs in by_protocol.values() for result in runs]
        cells = [str(len(by_protocol.get(protocol, []))) for protocol in protocols]
        for protocol in protocols:
            runs = by_protocol.get(protocol, [])
            cells += [_spread([run["test"][kind][metric] for run in runs]) for kind, metric in _METRICS]
        up = [run["communication"]["up_bytes_per_device_round"] for run in every]
        known = [value / 1e3 for value in up if value is not None]
        cells += [f"{fmean(run['seconds']['per_round'] for run in every):.2f}", f"{fmean(known):.1f}" if known else "-"]
        table.add_row(every[0]["data"]["name"], label.split("\n")[0], *cells)
    _print(table)


def _labels(results: list[dict[str, Any]]) -> list[str]:
    """A name for each run: its method and whatever settings differ among runs of that method.
    Behind a line break, what else tells rows apart."""
    variants: dict[str, list[dict[str, Any]]] = {}
    names = ["+".join([result["method"], *result["plugins"]]) for result in results]
    for name, result in zip(names, results, strict=True):
        variants.setdefault(name, []).append(_settings(result))
    labels = []
    for name, result in zip(names, results, strict=True):
        own = _settings(result)
        differing = [key for key in own if any(other.get(key) != own[key] for other in variants[name])]
        shown = " ".join(f"{key}={own[key]}" for key in differing)
        labels.append(f"{name} {shown}".strip() + f"\n{result['data']['sha256']} {result['data']['users']}")
    return labels


def _settings(result: dict[str, Any]) -> dict[str, Any]:
    config = result["config"]
    return {**config["settings"], "rounds": result["rounds"], "participation": config["participation"]}


def _spread(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{fmean(values):.4f}" + (f" ±{stdev(values):.4f}" if len(values) > 1 else "")


def items_table(items: Iterable[Recommendation], titles: bool) -> None:
    """Recommended items, best first."""
    table = _table("", "item", "score", *(("title",) if titles else ()), right=(0, 2))
    for place, item in enumerate(items, 1):
        table.add_row(str(place), str(item.item), f"{item.score:.3f}", *((item.title,) if titles else ()))
    _print(table)


def methods_table(methods: Iterable[type[Method]], plugins: Iterable[type[Plugin]]) -> None:
    """Methods and plug-ins by name."""
    table = _table("method", "what it is", "from")
    for method in methods:
        table.add_row(method.name, _first_line(method), method.paper)
    for plugin in plugins:
        table.add_row(f"--with {plugin.plugin}", _first_line(plugin), "")
    _print(table)
    print("settings of a method: federec methods NAME")


def _first_line(thing: type) -> str:
    return (thing.__doc__ or "").splitlines()[0]


def settings_table(method: type[Method]) -> None:
    """A method's settings, field by field."""
    table = _table(method.name, "default", "")
    for name, info in method.model_fields.items():
        table.add_row(name, str(info.default), " ".join((info.description or "").split()))
    _print(table)


def sets_table(status: Iterable[tuple[NamedSet, Path | None]]) -> None:
    """Named sets and where they are."""
    table = _table("set", "users", "items", "rows", "where", right=(1, 2, 3))
    for known, path in status:
        get = f"federec data get {known.name}"
        where = "built in" if known.built_in else str(path) if path else f"not here: {get}"
        table.add_row(known.name, f"{known.users:,}", f"{known.items:,}", f"{known.rows:,}", where)
    _print(table)


def facts_table(facts: dict[str, Any]) -> None:
    """A data set, fact by fact."""
    table = _table("", "")
    table.show_header = False
    for key, value in facts.items():
        table.add_row(key.replace("_", " "), _plain(value))
    _print(table)


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(part)}" for key, part in value.items())
    if isinstance(value, list):
        return " .. ".join(_plain(part) for part in value)
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def check_table(checks: Iterable[tuple[str, str, str]]) -> None:
    """What was checked, what was found, and the command that mends it."""
    table = _table("", "found", "to mend")
    for check in checks:
        table.add_row(*check)
    _print(table)
