"""All trackers by name, and those of a run, however they are given."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from federec.errors import UserError, did_you_mean, several
from federec.files import read_bytes, write_atomic
from federec.settings import named
from federec.tracking.base import Tracker
from federec.tracking.mlflow import MLflow
from federec.tracking.tensorboard import TensorBoard

TRACKERS: dict[str, type[Tracker]] = {tracker.name: tracker for tracker in (TensorBoard, MLflow)}

Given = str | Tracker | type[Tracker]
"""A tracker as users give it: a text as on the command line, an object, or a class for its defaults."""
Track = Given | Iterable[Given]
_REMEDY = "give trackers, such as [fr.TensorBoard()] or ['mlflow:experiment=films']"
_KEY = "tracker"
"""Where a tracker's plain values have its name."""


def trackers(given: Track) -> list[Tracker]:
    """One or several trackers, however they are given."""
    return [_tracker(each) for each in several(given, "track", _REMEDY, (str, type, Tracker))]


def checked(given: Track, folder: Path | None) -> list[Tracker]:
    """The trackers of a new run in this folder; refused here if they cannot log it."""
    found = trackers(given)
    for tracker in found:
        tracker.check(folder)
    return found


def _tracker(given: object) -> Tracker:
    if isinstance(given, Tracker):
        return given
    if isinstance(given, type) and issubclass(given, Tracker):
        return given()
    if not isinstance(given, str):
        raise UserError(f"{given!r:.80} is no tracker; {_REMEDY}")
    name, settings = named(given, "tracker")
    return _made(name, settings)


def _made(name: str, settings: dict[str, Any]) -> Tracker:
    if name not in TRACKERS:
        raise UserError(f"unknown tracker '{name}'{did_you_mean(name, TRACKERS)}")
    return TRACKERS[name](**settings)


def remember(trackers: Sequence[Tracker], folder: Path) -> None:
    """Keep the trackers of a run in its folder, for when it is continued."""
    if not trackers:
        return
    values = [{_KEY: tracker.name, **tracker.model_dump()} for tracker in trackers]
    write_atomic(folder / "tracking.json", json.dumps(values, indent=2) + "\n")


def remembered(folder: Path) -> list[Tracker]:
    """The trackers of the run in a folder."""
    path = folder / "tracking.json"
    if not path.is_file():
        return []
    try:
        return [_made(values.pop(_KEY), values) for values in json.loads(read_bytes(path))]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: is damaged; remove it, and name the trackers again") from None
