"""TensorBoard: curves and settings as event files, written by TensorBoard's own code, without TensorFlow."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

from federec.errors import UserError, needs
from federec.files import make_folder
from federec.runs.folder import Line
from federec.tracking.base import (
    HEADLINE_FIGURES,
    Begun,
    Log,
    Tracker,
    result_figures,
    round_figures,
    settings_of,
    versions,
)


class TensorBoard(Tracker):
    """Log a run for TensorBoard: `tensorboard --logdir runs` then shows all runs of that folder.

    >>> run = fr.train("fedmf", data, rounds=1, out="runs/b", track=fr.TensorBoard())
    """

    name: ClassVar[str] = "tensorboard"

    folder: str | None = None
    """Folder of the event files, of one run; the run's own if not given."""

    def check(self, folder: Path | None) -> None:
        needs("tensorboard")
        place = self._place(folder)
        if _files(place):
            raise UserError(f"{place}: has the event files of another run; name another folder")

    def open(self, run: Begun) -> Log:
        return _Events(self, self._place(run.folder), run)

    def _place(self, folder: Path | None) -> Path:
        if self.folder is not None:
            return Path(self.folder)
        if folder is None:
            raise UserError("TensorBoard needs a folder; give fr.train(..., out=...) or fr.TensorBoard(folder=...)")
        return folder


class _Events(Log):
    """One more event file: each time that a run is continued it gets another one."""

    def __init__(self, tracker: TensorBoard, folder: Path, run: Begun) -> None:
        needs("tensorboard")
        from tensorboard.summary.writer.record_writer import RecordWriter
        from torch.utils.tensorboard.summary import hparams

        self.again, self.logged = tracker, _last_step(folder)
        make_folder(folder)
        # Readers take the files in the order of their names
        self._records = RecordWriter((folder / f"events.out.tfevents.{time.time_ns()}").open("wb"))
        self._write(0, file_version="brain.Event:2")
        settings = settings_of(run.config) | versions()
        experiment, start, self._end = hparams(settings, dict.fromkeys(HEADLINE_FIGURES))
        self._write(0, summary=experiment)
        self._write(0, summary=start)

    def round(self, line: Line) -> None:
        self._scalars(round_figures(line), line["round"])

    def finish(self, result: dict[str, Any], report: str) -> None:
        self._scalars(result_figures(result), result["best_round"])
        self._write(result["rounds"], summary=self._end)

    def close(self) -> None:
        self._records.close()

    def _scalars(self, figures: dict[str, float], step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        self._write(step, summary=Summary(value=values))

    def _write(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        event = Event(wall_time=time.time(), step=step, **content)
        self._records.write(event.SerializeToString())
        self._records.flush()


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*tfevents*"))


def _last_step(folder: Path) -> int:
    """The last round in the event files of a folder."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    events = (event for file in _files(folder) for event in LegacyEventFileLoader(str(file)).Load())
    return max((event.step for event in events), default=0)
