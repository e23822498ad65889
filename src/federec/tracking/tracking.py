"""The trackers of a run at work. One that fails says so once, and the run goes on without it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from federec.methods.base import Method
from federec.runs.config import RunConfig, name_of
from federec.runs.folder import Line, RunFolder
from federec.runs.loop import OnRound
from federec.tracking.base import Begun, Log, Tracker
from federec.tracking.registry import remember


class Tracking:
    """Logs a run wherever it is tracked."""

    def __init__(self) -> None:
        self._logs: list[Log] = []

    def open(self, tracker: Tracker, run: Begun) -> Tracker:
        """Begin with a tracker; gives the one with which the run is continued."""
        try:
            log = tracker.open(run)
        except Exception as error:
            _warn(tracker, error)
            return tracker
        self._logs.append(log)
        return log.again

    def on_round(self, then: OnRound | None) -> OnRound:
        """What logs a round, and then calls `then`."""

        def call(line: Line, rounds: int) -> None:
            self.round(line)
            if then is not None:
                then(line, rounds)

        return call

    def round(self, line: Line) -> None:
        """Log a round, unless it was logged before the run was continued."""
        self._each(lambda log: log.round(line) if line["round"] > log.logged else None)

    def finish(self, result: dict[str, Any], report: Callable[[], str]) -> None:
        """Log the outcome. `report` gives its page for people."""
        page = report() if self._logs else ""
        self._each(lambda log: log.finish(result, page))

    def close(self) -> None:
        """Let go of everything."""
        self._each(lambda log: log.close())

    def _each(self, do: Callable[[Log], None]) -> None:
        for log in [*self._logs]:
            try:
                do(log)
            except Exception as error:
                self._logs.remove(log)
                _warn(log.again, error)


@contextmanager
def tracking(
    trackers: Iterable[Tracker], config: RunConfig, method: Method, folder: RunFolder | None, history: list[Line]
) -> Iterator[Tracking]:
    """Log a run, from the rounds in its history on: a tracker may have missed some of them."""
    path = folder.path if folder is not None else None
    run = Begun(name_of(config, method) if path is None else path.resolve().name, config.model_dump(mode="json"), path)
    logs = Tracking()
    again = [logs.open(tracker, run) for tracker in trackers]
    if path is not None:
        remember(again, path)
    try:
        for line in history:
            logs.round(line)
        yield logs
    finally:
        logs.close()


def _warn(tracker: Tracker, error: Exception) -> None:
    reason = " ".join(str(error).split()) or type(error).__name__
    warnings.warn(f"{tracker.name} logs no more of this run, which goes on: {reason:.200}", stacklevel=2)
