"""Named presets: settings found on validation for a method and data set, where the paper gives none."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from typing import Any

import yaml

from federec.errors import UserError, did_you_mean


def presets(method: str, plugins: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """Presets by name: the method's, over which those of the method with these plug-ins go."""
    text = (files("federec.methods") / "presets.yaml").read_text(encoding="utf-8")
    known: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(text) or {}
    return known.get(method, {}) | known.get("+".join([method, *plugins]), {})


def preset(method: str, name: str, plugins: Iterable[str] = ()) -> dict[str, Any]:
    """One preset's settings."""
    known = presets(method, plugins)
    if name not in known:
        remedy = did_you_mean(name, known) if known else "; it has none"
        raise UserError(f"'{method}' has no preset '{name}'{remedy}")
    return known[name]
