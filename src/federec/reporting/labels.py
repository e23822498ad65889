"""The words for what a run is and what it found, the same on the terminal and in a report; and labels that tell runs
apart: data and method, with the settings in which runs on that data or of it differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from federec.data.sets import SETS
from federec.evaluation.protocols import PROTOCOLS

RANKINGS = {
    "full": "against all items",
    "fresh_full": "with a fresh history",
    "full_light": "lightest quarter of users",  # a federation does not know which of all users are light
    "full_cold_users": "users without a training item",
    "full_cold_items": "items that nobody trained on",
    "sampled": "sampled: against 99 items",
    "fresh_sampled": "with a fresh history",
    "sampled_light": "lightest quarter of users",
}
"""Rows of a run's tables, where the run has them. `full` and `sampled` are rankings, what follows is a part of them."""
WHOLE = ("full", "sampled")
VIEWS = {
    "own": "with its own item rows",
    "global": "with the server's item rows",
    "random": "with another device's item rows",
}
"""What a device ranks with, where its method tunes item rows on the device."""
HEADLINES = (("full", "ndcg@10"), ("sampled", "hr@10"))
"""The figures that stand for a run where there is no space for more."""

_READING = ("columns", "min_interactions", "k_core", "min_rating", "repeats", "split", "ties")
"""Settings that belong to the data."""
_DEFAULTS: dict[str, Any] = {"k_core": 0, "split": "leave-one-out"}
"""What those of them mean that are not given; the others have no default value."""


def method_name(result: dict[str, Any]) -> str:
    """The method with its plug-ins."""
    return "+".join([result["method"], *result["plugins"]])


def with_fresh(test: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Metrics of test by ranking; `fresh_full` and `fresh_sampled` are those with a fresh history, where known."""
    return {**test, **{f"fresh_{ranking}": metrics for ranking, metrics in test.get("fresh", {}).items()}}


def held_out_text(data: dict[str, Any]) -> str:
    """What was held out, and how many users have no test item; empty where that is not known."""
    split, short = data.get("split"), data.get("users_not_evaluated")
    if not split:
        return ""
    users = "1 user has" if short == 1 else f"{short:,} users have" if short else ""
    return str(split) + (f"; {users} no test item" if short else "")


def round_text(result: dict[str, Any]) -> str:
    """The chosen round and the metric that picked it."""
    by = result.get("selection", {}).get("metric") or "sampled.hr@10"  # as versions chose that did not write it down
    return f"round {result['best_round']} of {result['rounds']}, chosen by validation {by}"


def seconds_text(seconds: dict[str, float]) -> str:
    """How long a run took."""
    return f"{seconds['total']:.1f} s, {seconds['per_round']:.2f} s a round"


def traffic_unit(communication: dict[str, Any]) -> str:
    """What bytes are counted per: a device, or a node that hosts several users."""
    return "device" if "up_bytes_per_device_round" in communication else "node"


def traffic_text(communication: dict[str, float | None]) -> str:
    """What travels in a round."""
    per = traffic_unit(communication)
    up, down = (communication.get(f"{way}_bytes_per_{per}_round") for way in ("up", "down"))
    if up is None or down is None:
        return "none: the method is not federated, it sees all histories"
    hub = f" of {communication['users_per_node']:.3g} users" if per == "node" else ""
    return f"{up / 1e3:,.1f} kB up, {down / 1e3:,.1f} kB down, per {per}{hub} and round"


def machine_text(result: dict[str, Any]) -> str:
    """The machine that computed the run; empty for results of older versions."""
    machine = result.get("machine")
    if not machine:
        return ""
    threads = f"{machine['threads']} thread{'s' if machine['threads'] != 1 else ''} on {machine['cores']} cores"
    return ", ".join(filter(None, [machine.get("gpu"), machine["cpu"], threads]))


def labels(results: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """For each run: its data with the settings of reading and splitting in which runs on that data differ, its method
    with the settings in which runs of that method differ, and what else distinguishes rows."""
    data = [result["data"]["name"] for result in results]
    methods = [method_name(result) for result in results]
    known = {r["data"]["sha256"]: r["data"]["columns"] for r in results if r["data"].get("columns")}
    sources = _labelled(data, [_reading(result, known) for result in results])
    methods = _labelled(methods, [_settings(result) for result in results])
    counts = (tuple(str(result["data"][key]) for key in ("users", "items", "interactions")) for result in results)
    return [(source, method, *count) for source, method, count in zip(sources, methods, counts, strict=True)]


def _labelled(names: list[str], settings: list[dict[str, Any]]) -> list[str]:
    """Each name with those of its settings that are not the same wherever the name occurs; None, a default, is not
    named."""
    variants: dict[str, list[dict[str, Any]]] = {}
    for name, own in zip(names, settings, strict=True):
        variants.setdefault(name, []).append(own)
    found = []
    for name, own in zip(names, settings, strict=True):
        given = {key: value for key, value in own.items() if value is not None}
        differing = [key for key in given if any(other.get(key) != given[key] for other in variants[name])]
        found.append(" ".join([name, *(f"{key}={str(given[key]).replace(' ', '')}" for key in differing)]))
    return found


def _reading(result: dict[str, Any], known: Mapping[str, dict[str, str]]) -> dict[str, Any]:
    """How the data was read and split; None where that is the default. `known` has the columns of data by its SHA-256,
    as they were recognised: results of older versions only have those that were named."""
    config, sha256 = result["config"], result["data"]["sha256"]
    own = {key: config.get(key) for key in _READING}
    own["columns"] = result["data"].get("columns") or config.get("columns") or known.get(sha256, {})
    if own["split"] is None and (config.get("held_out") or "split" in own["columns"]):
        own["split"] = "given"
    own["ties"] = own["ties"] or "file"  # as versions did that did not write it down
    source = SETS.get(config.get("data", ""))
    of_set = {
        "min_interactions": source.min_interactions if source else 0,
        "repeats": source.repeats if source else "merge",
    }
    defaults = {**_DEFAULTS, **of_set, "ties": PROTOCOLS[result["protocol"]].ties}
    own = {key: None if value == defaults.get(key) else value for key, value in own.items()}
    return {**own, "sha256": sha256[:8]}


def _settings(result: dict[str, Any]) -> dict[str, Any]:
    """All other settings that distinguish runs, except protocol and seed."""
    config = result["config"]
    line = {"channel": channel_text(config.get("channel") or ()) or "none"}
    if config.get("aggregator") not in (None, "mean", "sum"):  # the two that methods bring themselves
        line["aggregator"] = config["aggregator"]
    code = {Path(reference).name: sha256[:8] for reference, sha256 in config.get("sources", {}).items()}
    select = config.get("select")
    return {
        **config["settings"],
        "rounds": config.get("rounds") or result["rounds"],
        **{key: config.get(key) for key in ("participation", "device", "evaluate_users", "patience")},
        # Versions that did not write it down chose by sampled ranking under both protocols.
        "select": "protocol's" if select == PROTOCOLS[result["protocol"]].select else select or "sampled.hr@10",
        **line,
        **code,
    }


def privacy_text(result: dict[str, Any]) -> str:
    """What is promised of a user's privacy; empty where nothing is, or where no noise was added."""
    told = result.get("privacy", {})
    if told.get("epsilon") is None:
        return str(told.get("why", ""))
    return f"epsilon {told['epsilon']:.4g} at delta {told['delta']:g} for each user; it covers {told['covers']}"


def channel_text(stages: Iterable[dict[str, Any]]) -> str:
    """The stages of a channel in order, as on the command line."""
    texts = []
    for stage in stages:
        settings = ",".join(f"{key}={value}" for key, value in stage.items() if key != "stage")
        texts.append(":".join(filter(None, [stage["stage"], settings])))
    return " -> ".join(texts)
