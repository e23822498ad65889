"""MLflow: settings, curves, outcome and report of a run in a store or on a tracking server."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any, ClassVar

from federec.errors import needs
from federec.runs.folder import Line
from federec.tracking.base import Begun, Log, Tracker, result_figures, round_figures, settings_of, versions

_PAUSE = 1.0
"""Seconds between two messages to MLflow at least: rounds can be faster than a server answers."""
_MOST = 1000
"""Numbers that MLflow takes in one message."""
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # what is run here is nobody else's business
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # a run waits for a server that is gone for seconds, not for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""Set before MLflow is imported, where the user has not set them."""


class MLflow(Tracker):
    """Log a run with MLflow; `mlflow ui` then shows it, with its settings, curves, outcome and report.

    >>> run = fr.train("fedmf", data, rounds=1, track=fr.MLflow(experiment="films"))
    """

    name: ClassVar[str] = "mlflow"

    uri: str | None = None
    """The tracking server or store, such as `http://localhost:5000` or `sqlite:///mlflow.db`. If not given,
    `MLFLOW_TRACKING_URI`, or `mlflow.db` in the current folder. The run's folder keeps what is given here, so an
    address with a password belongs in `MLFLOW_TRACKING_URI`."""
    experiment: str = "federec"
    """The experiment to which the run belongs."""
    run_id: str | None = None
    """An MLflow run to log to; a new one if not given."""

    def check(self, folder: Path | None) -> None:
        _mlflow()

    def open(self, run: Begun) -> Log:
        return _Logged(self, run)


class _Logged(Log):
    def __init__(self, tracker: MLflow, run: Begun) -> None:
        self._mlflow = _mlflow()
        self._client = self._mlflow.MlflowClient(tracker.uri)
        self._waiting: list[Any] = []
        self._sent, self._status, self.logged = time.monotonic(), "KILLED", 0
        if tracker.run_id is None:
            found = self._client.create_run(self._experiment(tracker.experiment), run_name=run.name)
            self._id: str = found.info.run_id
        else:
            self._id = tracker.run_id
            self._client.update_run(self._id, "RUNNING")
            # Every round has its seconds
            self.logged = max(
                (each.step for each in self._client.get_metric_history(self._id, "seconds/train")), default=0
            )
        self.again = tracker.model_copy(update={"run_id": self._id})
        entities = self._mlflow.entities
        settings = [entities.Param(_key(name), str(value)) for name, value in settings_of(run.config).items()]
        self._client.log_batch(self._id, params=settings)
        self._tag({"mlflow.source.name": "federec", "mlflow.source.type": "LOCAL"} | versions())

    def round(self, line: Line) -> None:
        self._add(round_figures(line), line["round"])
        if time.monotonic() - self._sent > _PAUSE:
            self._send()

    def finish(self, result: dict[str, Any], report: str) -> None:
        self._add(result_figures(result), result["best_round"])
        self._send()
        self._tag(result["versions"])
        self._client.log_text(self._id, report, "report.html")
        self._status = "FINISHED"

    def close(self) -> None:
        self._send()
        self._client.set_terminated(self._id, self._status)

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def _add(self, figures: dict[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        self._waiting += [self._mlflow.entities.Metric(_key(name), value, now, step) for name, value in figures.items()]

    def _send(self) -> None:
        for first in range(0, len(self._waiting), _MOST):
            self._client.log_batch(self._id, metrics=self._waiting[first : first + _MOST])
        self._waiting.clear()
        self._sent = time.monotonic()

    def _tag(self, words: dict[str, str]) -> None:
        names = {"git_commit": "mlflow.source.git.commit"}
        tags = [self._mlflow.entities.RunTag(names.get(name, name), word) for name, word in words.items()]
        self._client.log_batch(self._id, tags=tags)


def _mlflow() -> Any:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    return needs("mlflow")


def _key(name: str) -> str:
    """A name as MLflow allows it, and writes it itself: `ndcg_at_10`."""
    return re.sub(r"[^\w/. :-]", "_", name.replace("@", "_at_"))
