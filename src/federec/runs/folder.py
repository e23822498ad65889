"""The folder of a run, and its contract with other tools.

    config.yaml     all resolved settings
    rounds.jsonl    one line per round
    model/          state-R.safetensors, the state after R rounds. There are two: the newest, to resume from, and one
                    from which the best round can be recomputed; model.json says which is which. A finished run
                    with large states has only the second.
                    A finished run has ranks.safetensors: each evaluated user's ranks, to compare runs user by user;
                    and examples.json: a few users with their lists, by name, so that a report needs no data.
                    A run with an epsilon has account.json: what it has used up, written before it is.
    result.json     the outcome, once the run is finished
    report.html     the outcome as a page for people
    tracking.json   where the run is logged for other programs, if it is

`model.json` is replaced last in every checkpoint, so that it always names complete files. Other files that a killed run
left behind are removed when it is resumed.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as format_tensors
from torch import Tensor

from federec.errors import UserError
from federec.federation.state import State
from federec.files import cannot_write, make_folder, read_bytes, write_atomic
from federec.methods.base import Method
from federec.reporting.details import Example
from federec.runs import tensors
from federec.runs.best import Best
from federec.runs.config import RunConfig
from federec.runs.record import Line as Line
from federec.runs.record import RunRecord

LARGE = 64 * 2**20
"""A state with more bytes of private parameters is neither copied nor stored after every round."""


@dataclass
class Checkpoint:
    """A run between two rounds, or after the last one. In a finished run with large states `state` is `best_state`."""

    round: int
    state: State
    best: Best
    best_state: State | None
    """The state after `best.after` rounds. None where it is large: it is recomputed from a state in the folder."""
    data: str
    """Fingerprint of the data."""
    best_from: int | None = None
    """Without `best_state`: rounds played before the stored state from which it is recomputed."""


class RunFolder(RunRecord):
    """Reads and writes the files of one run."""

    @property
    def account(self) -> Path:
        """What the run has used up of its privacy budget."""
        return self.model / "account.json"

    def create(self, config: RunConfig) -> None:
        """Start a new run in this folder; if that fails, nothing is left behind."""
        self.refuse_other()
        new = not self.path.exists()
        try:
            make_folder(self.path)
            write_atomic(self.path / "config.yaml", config.text())
        except BaseException:
            if new:
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    def refuse_other(self) -> None:
        """Refuse a path that holds anything but leftovers of a run that was killed before it began."""
        if self.path.is_dir() and all(file.suffix == ".part" for file in self.path.iterdir()):
            return
        if self.path.exists():
            raise UserError(f"{self.path}: {self._holds()}; choose another folder")

    def refuse_unlike(self, config: RunConfig) -> None:
        """Refuse to continue a run with other settings than these."""
        held = read_bytes(self.path / "config.yaml").decode(errors="replace")
        if self.federated or held != config.text():
            raise UserError(f"{self.path}: holds a run with other settings; choose another folder")

    def _holds(self) -> str:
        if self.finished:
            return "holds a finished run already"
        return f"holds an unfinished run ({self._continue})" if self.started else "exists and is not a run folder"

    def config(self, method: Method | None = None) -> RunConfig:
        """The run's settings. `method` is the run's method, where it cannot be found by its reference."""
        if not self.started:
            raise UserError(f"{self.path}: is not a run folder (no config.yaml); name one that `federec train` wrote")
        return RunConfig.read(self.path / "config.yaml", method)

    def add_line(self, line: Line) -> None:
        """Append a round's record."""
        path = self.path / "rounds.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(_line(line))
        except OSError as error:
            raise cannot_write(path, error) from None

    def sweep(self, lines: list[Line], point: Checkpoint | None) -> None:
        """Remove what a killed run wrote after its last checkpoint."""
        write_atomic(self.path / "rounds.jsonl", "".join(map(_line, lines)))
        for scrap in self.path.glob("*.part"):
            scrap.unlink()
        self._keep({"model.json", *_states(point)} if point else set())

    def save(self, point: Checkpoint) -> None:
        """Store a checkpoint; the previous one is removed only when the new one is complete."""
        make_folder(self.model)
        states = _states(point)
        for name, state in states.items():
            if state is not None and not (self.model / name).is_file():
                write_atomic(self.model / name, tensors.pieces(state.tensors()))
        metadata = {
            "format": 1,
            "data": point.data,
            "round": point.round,
            "state": point.best.after if point.state is point.best_state else point.round,
            "best_round": point.best.round,
            "best_valid": point.best.value,
            "best_after": point.best.after,
            "best_from": point.best_from,
        }
        write_atomic(self.model / "model.json", json.dumps(metadata, indent=2, allow_nan=False) + "\n")
        self._keep({"model.json", *states})

    def _keep(self, names: set[str]) -> None:
        """Remove all other files of the model."""
        for file in self.model.iterdir() if self.model.is_dir() else ():
            if file.name not in names and file != self.account:
                file.unlink()

    def checkpoint(self, device: str = "cpu") -> Checkpoint | None:
        """The newest checkpoint, its tensors on `device`; None where no round was finished."""
        path = self.model / "model.json"
        first = {state_name(0), state_name(1)}
        if not path.is_file() and {file.name for file in self.model.glob("*.safetensors")} <= first:
            return None
        try:
            metadata = json.loads(read_bytes(path))
            number, data, value = int(metadata["round"]), str(metadata["data"]), metadata["best_valid"]
            value = None if value is None else float(value)
            best = Best(int(metadata["best_round"]), value, int(metadata["best_after"]))
            newest, from_ = int(metadata.get("state", number)), metadata.get("best_from")
            from_ = None if from_ is None else int(from_)
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}: is damaged; the run cannot be used, start a new one") from None
        state = self.state(newest, device)
        best_state: State | None
        if from_ is not None:
            best_state = None
        elif best.after == newest:
            best_state = state if state.private_bytes > LARGE else state.copy()
        else:
            best_state = self.state(best.after, device)
        return Checkpoint(number, state, best, best_state, data, from_)

    def state(self, after: int, device: str) -> State:
        """The state that was stored after this number of rounds."""
        path = self.model / state_name(after)
        if not path.is_file():
            raise UserError(f"{path}: is missing; the run cannot be used, start a new one")
        try:
            return State.of(tensors.read(path), device)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{path}: is truncated or damaged; the run cannot be used, start a new one") from None

    def ranks(self) -> dict[str, Tensor]:
        """The ranks of held-out items, and what else a report needs; see `runs.loop.Review`."""
        return {name: torch.from_numpy(array) for name, array in self.rank_arrays().items()}

    def write_result(
        self, result: dict[str, Any], ranks: dict[str, Tensor], report: str, examples: list[Example] | None = None
    ) -> None:
        """Finish the run. The result is written last, so that a folder with a result is complete."""
        write_atomic(self.model / "ranks.safetensors", format_tensors(ranks))
        if examples is not None:
            write_atomic(self.model / "examples.json", json.dumps(examples, ensure_ascii=False) + "\n")
        write_atomic(self.path / "report.html", report)
        text = json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False)
        write_atomic(self.path / "result.json", text + "\n")


def _line(line: Line) -> str:
    return json.dumps(line, allow_nan=False) + "\n"


def state_name(after: int) -> str:
    """The file in `model/` with the state after this number of rounds."""
    return f"state-{after}.safetensors"


def _states(point: Checkpoint) -> dict[str, State | None]:
    """The state files of a checkpoint and what they hold; None for a file that the folder already has."""
    best = {state_name(point.best.after if point.best_from is None else point.best_from): point.best_state}
    return best if point.best_state is point.state else best | {state_name(point.round): point.state}
