"""What a run has written for others to read. Nothing here needs torch, so that commands which only read are quick."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as parse_arrays

from federec.errors import UserError
from federec.files import as_path, read_bytes
from federec.reporting.details import Example

Line = dict[str, Any]
"""A round's record in rounds.jsonl."""

_RESULT = {
    *("method", "plugins", "protocol", "seed", "rounds", "best_round", "data", "valid", "test", "views"),
    *("seconds", "peak_rss_mb", "communication", "config", "versions"),
}


class RunRecord:
    """Reads the outcome of one run from its folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = as_path(path)
        self.model = self.path / "model"

    @property
    def started(self) -> bool:
        return (self.path / "config.yaml").is_file()

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").is_file()

    @property
    def federated(self) -> bool:
        """Whether this is a federation's run, whose devices keep the private part of the model."""
        return (self.path / "federation.json").is_file()

    @property
    def _continue(self) -> str:
        command = "federation up" if self.federated else "train"
        return f"continue it with: federec {command} --resume {shlex.quote(str(self.path))}"

    def lines(self, upto: int) -> list[Line]:
        """The records of rounds 1..upto."""
        path = self.path / "rounds.jsonl"
        texts = read_bytes(path).decode(errors="replace").splitlines()[:upto] if path.is_file() else []
        try:
            lines: list[Line] = [json.loads(text) for text in texts]
            if [line["round"] for line in lines] == list(range(1, upto + 1)):
                return lines
        except (ValueError, KeyError, TypeError):
            pass
        raise UserError(f"{path}: does not hold rounds 1 to {upto}; the run cannot be used, start a new one")

    def rank_arrays(self) -> dict[str, NDArray[Any]]:
        """The ranks of held-out items, and what else a report needs; see `runs.loop.Review`."""
        try:
            return parse_arrays(read_bytes(self.model / "ranks.safetensors"))
        except (SafetensorError, ValueError):
            raise UserError(f"{self.model / 'ranks.safetensors'}: is damaged; train again") from None

    def examples(self) -> list[Example] | None:
        """A few users with their lists; None where the run did not keep them."""
        try:
            return [Example(*each) for each in json.loads((self.model / "examples.json").read_bytes())]
        except (OSError, ValueError, TypeError):
            return None

    def result(self) -> dict[str, Any]:
        """The outcome."""
        path = self.path / "result.json"
        if not self.finished:
            if self.started:
                raise UserError(f"{self.path}: is not finished; {self._continue}")
            raise UserError(f"{self.path}: is not a run folder (no result.json); name one that `federec train` wrote")
        try:
            result = json.loads(read_bytes(path))
        except ValueError:
            result = None
        if not isinstance(result, dict) or not result.keys() >= _RESULT:
            raise UserError(f"{path}: is damaged; train again")
        return result
