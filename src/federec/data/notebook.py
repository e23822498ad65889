"""How data looks in a notebook."""

from __future__ import annotations

from html import escape
from typing import Any

from federec.data.describe import describe
from federec.data.interactions import Interactions


def html(data: Interactions) -> str:
    """A table of what `federec data describe` says, without what says nothing: counts of 0, and columns whose names are
    their roles."""
    known = {key: value for key, value in describe(data).items() if key not in ("name", "sha256")}
    known["columns"] = {role: column for role, column in data.columns.items() if role != column}
    known = {key: value for key, value in known.items() if value is None or value}
    cells = {key.replace("_", " "): plain(value) for key, value in known.items()}
    left = "style='text-align:left'"
    rows = "".join(
        f"<tr><th {left}>{escape(key)}</th><td {left}>{escape(text)}</td></tr>" for key, text in cells.items()
    )
    return f"<table><caption>{escape(data.name)}</caption>{rows}</table>"


def plain(value: Any) -> str:
    """A value for people: `min 1, max 5`, `2000 .. 2003`, `1,000,209`."""
    if value is None:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(part)}" for key, part in value.items())
    if isinstance(value, list):
        return " .. ".join(plain(part) for part in value)
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
