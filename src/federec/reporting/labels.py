"""Labels that tell runs apart: the method, and the settings in which runs of that method differ."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

_OTHERS = (
    *("participation", "columns", "min_interactions", "k_core", "min_rating", "split", "device", "evaluate_users"),
    *("select", "patience"),
)


def labels(results: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """For each run: its data, its method with the settings that differ among runs of that method, and what else
    distinguishes rows."""
    names = ["+".join([result["method"], *result["plugins"]]) for result in results]
    variants: dict[str, list[dict[str, Any]]] = {}
    sources: dict[str, set[str]] = {}
    for name, result in zip(names, results, strict=True):
        variants.setdefault(name, []).append(_settings(result))
        sources.setdefault(result["data"]["name"], set()).add(result["data"]["sha256"])
    found = []
    for name, result in zip(names, results, strict=True):
        own, data = _settings(result), result["data"]
        differing = [key for key in own if any(other.get(key) != own[key] for other in variants[name])]
        method = " ".join([name, *(f"{key}={_value(own[key])}" for key in differing)])
        source = data["name"] if len(sources[data["name"]]) == 1 else f"{data['name']} {data['sha256'][:8]}"
        found.append((source, method, *(str(data[key]) for key in ("users", "items", "interactions"))))
    return found


def _settings(result: dict[str, Any]) -> dict[str, Any]:
    """All settings that distinguish runs, except protocol and seed."""
    config = result["config"]
    line = {"channel": channel_text(config.get("channel") or ()) or "none"}
    if config.get("aggregator") not in (None, "mean", "sum"):  # the two that methods bring themselves
        line["aggregator"] = config["aggregator"]
    code = {Path(reference).name: sha256[:8] for reference, sha256 in config.get("sources", {}).items()}
    return {
        **config["settings"],
        "rounds": config.get("rounds") or result["rounds"],
        **{key: config.get(key) for key in _OTHERS},
        "repeats": config.get("repeats", "merge"),  # results of older versions have none
        **line,
        **code,
    }


def _value(value: Any) -> str:
    return "default" if value is None else str(value).replace(" ", "")


def channel_text(stages: Iterable[dict[str, Any]]) -> str:
    """The stages of a channel in order, as on the command line."""
    texts = []
    for stage in stages:
        settings = ",".join(f"{key}={value}" for key, value in stage.items() if key != "stage")
        texts.append(":".join(filter(None, [stage["stage"], settings])))
    return " -> ".join(texts)
