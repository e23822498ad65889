"""What a tracker is: it logs a run for a program that shows many of them, such as TensorBoard or MLflow.

A tracker gets what `rounds.jsonl` and `result.json` have, by the same names, and nothing of single users. It never
decides anything: a run has the same numbers with and without it, and goes on where it fails.
"""

from __future__ import annotations

import json
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import federec
from federec.reporting.frames import flat
from federec.reporting.labels import HEADLINES, channel_text
from federec.runs.folder import Line
from federec.settings import Part

HEADLINE_FIGURES = ["result/selection.value", *(f"result/test.{ranking}.{metric}" for ranking, metric in HEADLINES)]
"""The figures by which programs compare runs, as `result_figures` names them."""
_FIGURES = ("best_round", "selection", "test", "seconds", "peak_rss_mb", "communication", "privacy")
"""Parts of a result that are logged, as far as they are numbers."""


class Begun(NamedTuple):
    """A run that begins, or goes on."""

    name: str
    config: dict[str, Any]
    """All settings, as `config.yaml` has them."""
    folder: Path | None


class Log(ABC):
    """Logs one run."""

    logged: int
    """Rounds that were logged before: a resumed run may play them again."""
    again: Tracker
    """The tracker with which the run is continued."""

    @abstractmethod
    def round(self, line: Line) -> None:
        """Log a round."""

    @abstractmethod
    def finish(self, result: dict[str, Any], report: str) -> None:
        """Log the outcome. `report` is its page for people."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything, whether the run is finished or not."""


class Tracker(Part, ABC):
    """Where runs are logged."""

    name: ClassVar[str]

    @abstractmethod
    def check(self, folder: Path | None) -> None:
        """Refuse a run in this folder that cannot be logged, before it begins."""

    @abstractmethod
    def open(self, run: Begun) -> Log:
        """Begin to log a run, or go on."""

    @classmethod
    def called(cls) -> str:
        return f"'{cls.name}'"


def round_figures(line: Line) -> dict[str, float]:
    """The numbers of a round by names like `valid/hr@10`: programs group them by what is before the slash."""
    numbers = _numbers({key: value for key, value in line.items() if key != "round"})
    return {name.replace(".", "/", 1): value for name, value in numbers.items()}


def result_figures(result: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a result by names like `result/test.full.ndcg@10`."""
    numbers = _numbers({part: result[part] for part in _FIGURES if part in result})
    return {f"result/{name}": value for name, value in numbers.items()}


def settings_of(config: Mapping[str, Any]) -> dict[str, str | int | float]:
    """All settings of a run that have a value; those of the method by names like `settings.dim`."""
    of_method = {f"settings.{name}": value for name, value in config["settings"].items()}
    of_run = {name: value for name, value in config.items() if name != "settings"}
    of_run["channel"] = channel_text(config.get("channel") or ())
    known = {name: value for name, value in (of_run | of_method).items() if value not in (None, "", [], {})}
    return {name: value if isinstance(value, str | int | float) else json.dumps(value) for name, value in known.items()}


def versions() -> dict[str, str]:
    """The version of federec, and the commit of the folder in which the run was started, where git knows it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        commit = ""
    return {"federec": federec.__version__} | ({"git_commit": commit} if commit else {})


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in flat(values).items() if type(value) in (int, float)}  # bool is an int, too
