"""The folder of a run, and its contract with other tools.

    config.yaml     all resolved settings
    rounds.jsonl    one line a round
    model/          model.json names the rest: state-R.safetensors (after round R, to resume from) and
                    best-B.safetensors (from which the best round B can be had again)
    result.json     the outcome, once finished
    report.html     the same for people

`model.json` is replaced last after every round, so that it always names whole files of one round.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors

from federec.errors import UserError
from federec.federation.state import State
from federec.files import cannot_write, make_folder, write_atomic
from federec.runtimes.config import RunConfig

Line = dict[str, Any]


@dataclass
class Checkpoint:
    """A run between two rounds."""

    round: int
    state: State
    best_round: int
    best_valid: float
    best: State


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.model = self.path / "model"

    def create(self, config: RunConfig) -> None:
        """Start a new run here."""
        self.refuse_other()
        make_folder(self.model)
        write_atomic(self.path / "config.yaml", config.text())

    def refuse_other(self) -> None:
        """Refuse a place that holds anything."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise UserError(f"{self.path}: {self._holds()}; choose another --out")

    def _holds(self) -> str:
        if self.finished:
            return "holds a finished run already"
        if (self.path / "config.yaml").is_file():
            return f"holds an unfinished run; continue it with: federec train --resume {self.path}"
        return "exists and is not a run folder"

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").is_file()

    def config(self) -> RunConfig:
        """The run's settings."""
        if not (self.path / "config.yaml").is_file():
            raise UserError(f"{self.path}: is not a run folder (no config.yaml); name one that `federec train` wrote")
        return RunConfig.read(self.path / "config.yaml")

    def lines(self, upto: int) -> list[Line]:
        """The records of rounds 1..upto, cutting off whatever a killed run wrote beyond them."""
        path = self.path / "rounds.jsonl"
        texts = path.read_text(encoding="utf-8").splitlines()[:upto] if path.is_file() else []
        try:
            lines: list[Line] = [json.loads(text) for text in texts]
        except json.JSONDecodeError:
            lines = []
        if [line.get("round") for line in lines] != list(range(1, upto + 1)):
            raise UserError(f"{path}: does not hold rounds 1 to {upto}; the run cannot be continued, start a new one")
        write_atomic(path, "".join(text + "\n" for text in texts))
        return lines

    def add_line(self, line: Line) -> None:
        """Append a round's record."""
        path = self.path / "rounds.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise cannot_write(path, error) from None

    def save(self, point: Checkpoint) -> None:
        """Store a checkpoint; what it replaces is removed only when the new one is whole."""
        state, best = f"state-{point.round}.safetensors", f"best-{point.best_round}.safetensors"
        self._write_tensors(state, point.state)
        if not (self.model / best).is_file():
            self._write_tensors(best, point.best)
        facts = {
            "format": 1,
            "round": point.round,
            "state": state,
            "best_round": point.best_round,
            "best_valid": point.best_valid,
            "best": best,
        }
        write_atomic(self.model / "model.json", json.dumps(facts, indent=2) + "\n")
        for old in self.model.iterdir():
            if old.name not in (state, best, "model.json"):
                old.unlink()

    def _write_tensors(self, name: str, state: State) -> None:
        tensors = {key: value.detach().cpu().contiguous() for key, value in state.tensors().items()}
        write_atomic(self.model / name, format_tensors(tensors))

    def checkpoint(self) -> Checkpoint | None:
        """The newest whole checkpoint; None where no round was finished."""
        path = self.model / "model.json"
        if not path.is_file():
            return None
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            state, best = self._read_tensors(facts["state"]), self._read_tensors(facts["best"])
            return Checkpoint(facts["round"], state, facts["best_round"], facts["best_valid"], best)
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f"{path}: is damaged; the run cannot be continued, start a new one") from None

    def _read_tensors(self, name: str) -> State:
        path = self.model / name
        try:
            return State.of(parse_tensors(path.read_bytes()))
        except FileNotFoundError:
            raise UserError(f"{path}: is missing; the run cannot be continued, start a new one") from None
        except (SafetensorError, ValueError, KeyError):
            raise UserError(f"{path}: is truncated or damaged; the run cannot be used, start a new one") from None

    def write_result(self, result: dict[str, Any], report: str) -> None:
        """Close the run: the report first, so that a folder with a result has everything."""
        write_atomic(self.path / "report.html", report)
        write_atomic(self.path / "result.json", json.dumps(result, indent=2, ensure_ascii=False) + "\n")

    def result(self) -> dict[str, Any]:
        """The outcome."""
        path = self.path / "result.json"
        if not path.is_file():
            if (self.path / "config.yaml").is_file():
                raise UserError(f"{self.path}: is not finished; continue it with: federec train --resume {self.path}")
            raise UserError(f"{self.path}: is not a run folder (no result.json)")
        try:
            result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise UserError(f"{path}: is damaged; train again") from None
        return result
