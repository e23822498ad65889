"""Named presets: settings found on validation for a method and data set, where the paper gives none."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

from federec.errors import UserError, did_you_mean


def presets(method: str) -> dict[str, dict[str, Any]]:
    """The method's presets by name."""
    text = (files("federec.methods") / "presets.yaml").read_text(encoding="utf-8")
    known: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(text) or {}
    return known.get(method, {})


def preset(method: str, name: str) -> dict[str, Any]:
    """One preset's settings."""
    known = presets(method)
    if name not in known:
        remedy = did_you_mean(name, known) if known else "; it has none"
        raise UserError(f"'{method}' has no preset '{name}'{remedy}")
    return known[name]
