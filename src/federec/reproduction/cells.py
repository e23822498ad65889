"""Cells of an experiment. Each is one run in a folder of its own, so an interruption costs at most one round."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from federec.errors import UserError
from federec.methods.presets import presets
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder

TIES = "file"
"""Published tables are measured with ties in time as in the file, as they were published."""


@dataclass(frozen=True)
class Row:
    """A line of a results page: a method with plug-ins and settings."""

    label: str
    method: str
    plugins: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict, hash=False)
    federated: bool = True
    """False for centralised references and controls."""

    @property
    def slug(self) -> str:
        return re.sub(r"[^A-Za-z0-9.=+]+", "-", self.label)


@dataclass(frozen=True)
class Cell:
    """One run of a row."""

    row: Row
    data: str
    protocol: str
    seed: int
    rounds: int | None = None
    """None means the default of the method."""

    @property
    def kind(self) -> str:
        """Which figures it belongs to: the paper's settings under `paper` or under `clean`, or `tuned` ones."""
        return self.protocol

    def folder(self, runs: Path) -> RunFolder:
        rounds = "" if self.rounds is None else f"-r{self.rounds}"
        data = Path(self.data).name.split(".")[0]
        return RunFolder(runs / f"{self.row.slug}-{data}-{self.protocol}-s{self.seed}{rounds}")

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the row. They override the method's preset for this data and protocol, if it has one."""
        known = presets(self.row.method, self.row.plugins)
        return {**known.get(f"{self.data}-{self.protocol}", known.get(self.data, {})), **self.row.settings}

    def config(self) -> RunConfig:
        """The run's configuration, checked: a wrong cell is refused before any cell runs."""
        return RunConfig.checked(
            method=self.row.method,
            plugins=self.row.plugins,
            settings=self.settings,
            data=self.data,
            protocol=self.protocol,
            ties=TIES,
            seed=self.seed,
            rounds=self.rounds,
        )

    def finished(self, runs: Path) -> bool:
        """Whether its run is finished. A run that was made with other settings than today's is refused."""
        folder = self.folder(runs)
        if not folder.finished:
            return False
        made, today = folder.result()["config"], self.config().model_dump(mode="json")
        for key in ("settings", "rounds", "participation"):
            if made[key] != today[key]:
                raise UserError(f"{folder.path}: was run with other {key} than {self.row.label} has now; delete it")
        return True

    def command(self, runs: Path) -> list[str]:
        """The command that trains the cell or continues its run."""
        folder = self.folder(runs)
        train = [sys.executable, "-m", "federec", "train", "--quiet"]
        if (folder.path / "config.yaml").is_file():
            return [*train, "--resume", str(folder.path)]
        plugins = [word for plugin in self.row.plugins for word in ("--with", plugin)]
        settings = [word for key, value in self.settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
        rounds = [] if self.rounds is None else ["--rounds", str(self.rounds)]
        where = ["--data", self.data, "--protocol", self.protocol, "--ties", TIES, "--seed", str(self.seed)]
        return [*train, self.row.method, *where, "--out", str(folder.path), *plugins, *settings, *rounds]


def unfinished(cells: Iterable[Cell], runs: Path) -> list[Cell]:
    """The cells that still have to be run."""
    return [cell for cell in cells if not cell.finished(runs)]


def estimate(cells: Iterable[Cell], runs: Path, say: Callable[[str], None]) -> float:
    """Seconds of work in the unfinished cells, from finished runs of the same row and data or from a trial of two
    rounds."""
    from federec.runtimes.local import run

    known: dict[tuple[str, str], float] = {}
    for finished in runs.glob("*/result.json"):
        result = json.loads(finished.read_text(encoding="utf-8"))
        key = (json.dumps([result["method"], *result["plugins"]]), result["data"]["name"])
        known[key] = result["seconds"]["total"] / result["rounds"]
    total = 0.0
    for cell in unfinished(cells, runs):
        config = cell.config()
        key = (json.dumps([config.method, *config.plugins]), config.data)
        if key not in known:
            trial = config.model_copy(update={"rounds": min(2, config.rounds or 2)})
            seconds = run(trial, trial.load(), None).result["seconds"]
            known[key] = seconds["per_round"] + seconds["evaluate"] / (config.rounds or 1)
            say(f"tried {cell.row.label} on {cell.data}: {known[key]:.2f} s per round")
        total += known[key] * (config.rounds or 1)
    return total


def run_cells(cells: list[Cell], runs: Path, jobs: int, say: Callable[[str], None]) -> list[tuple[Cell, str]]:
    """Run the unfinished cells, `jobs` at the same time with one thread each. Returns the cells that failed, each with
    the last line of its error."""
    runs.mkdir(parents=True, exist_ok=True)
    failures: list[tuple[Cell, str]] = []
    todo = unfinished(cells, runs)

    def one(cell: Cell) -> tuple[Cell, str | None]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(cell.command(runs), env=environment, capture_output=True, text=True, check=False)
        error = (done.stderr.strip().splitlines() or ["no error message"])[-1]
        return cell, None if done.returncode == 0 else error

    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(one, cell) for cell in todo]
        try:
            for count, future in enumerate(as_completed(waiting), 1):
                cell, error = future.result()
                outcome = "done" if error is None else f"FAILED: {error}"
                say(f"{count}/{len(todo)} {cell.row.label} {cell.data} {cell.protocol} seed {cell.seed}: {outcome}")
                if error is not None:
                    failures.append((cell, error))
        except KeyboardInterrupt:
            for future in waiting:
                future.cancel()
            raise
    return failures
