"""Named presets: settings found on validation for a method and data set, where the paper gives none.

`presets.yaml` is written by hand. `tuned.yaml` holds what the search with one budget for every method found under
`clean` (`federec reproduce all --tuned`), as presets `<data set>-clean`; `benchmarks/presets.py` writes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from federec.errors import UserError, did_you_mean

TUNED = "clean"
"""The preset that stands for the one of the run's own data set."""
RUN_SETTINGS = ("participation", "rounds")
"""Settings in presets that belong to the run, not to the method."""


def presets(method: str, plugins: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """Presets by name: the method's, over which those of the method with these plug-ins go. What was tuned without a
    plug-in is not taken for a method with one."""
    whole = "+".join([method, *plugins])
    by_hand, tuned = (_read(name) for name in ("presets.yaml", "tuned.yaml"))
    return by_hand.get(method, {}) | by_hand.get(whole, {}) | tuned.get(whole, {})


@cache  # a pure Python parser reads it in a tenth of a second, and a results page asks for hundreds of presets
def _read(name: str) -> dict[str, dict[str, dict[str, Any]]]:
    return yaml.safe_load((files("federec.methods") / name).read_text(encoding="utf-8")) or {}


def preset(method: str, name: str, plugins: Iterable[str] = (), data: str = "") -> dict[str, Any]:
    """One preset's settings. `clean` means the one that was tuned on `data`."""
    known, whole = presets(method, plugins), "+".join([method, *plugins])
    if name == TUNED:
        tuned = [each for each in known if each.endswith(f"-{TUNED}")]
        if f"{data}-{TUNED}" not in known and tuned:
            raise UserError(f"'{whole}' was not tuned on '{data}'; take one of: {', '.join(tuned)}; or `federec tune`")
        name = f"{data}-{TUNED}"
    if name not in known:
        remedy = did_you_mean(name, known) if known else "; it has none"
        raise UserError(f"'{whole}' has no preset '{name}'{remedy}")
    return known[name]
