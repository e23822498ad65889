"""Cells of an experiment: each is one run of a row on a data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from federec.methods.presets import RUN_SETTINGS, presets
from federec.runs.config import RunConfig

Kind = Literal["paper", "clean", "tuned"]
KINDS: tuple[Kind, ...] = ("paper", "clean", "tuned")
"""`paper`: the paper's settings under the leaky protocol. `clean`: the same settings under `clean`. `tuned`: under
`clean`, with settings that were searched on validation, with one budget for every method."""
SEEDS: dict[Kind, int] = {"paper": 1, "clean": 3, "tuned": 5}
"""Runs of a row and kind at most, with the seeds 0, 1, ..."""


@dataclass(frozen=True)
class Row:
    """A line of a results page: a method with plug-ins and settings."""

    label: str
    method: str
    plugins: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict, hash=False)
    federated: bool = True
    """False for centralised references and controls."""


@dataclass(frozen=True)
class Cell:
    """One run of a row."""

    row: Row
    data: str
    kind: Kind
    seed: int
    rounds: int | None = None
    """None means the default of the method."""

    @property
    def protocol(self) -> str:
        return "paper" if self.kind == "paper" else "clean"

    def config(self, found: Mapping[str, Any] | None = None, device: str = "cpu") -> RunConfig:
        """The run's configuration, checked. `found` are the settings of a tuned cell, those of the row itself aside."""
        found = {} if found is None else found
        known = presets(self.row.method, self.row.plugins).get(self.data, {}) if self.kind != "tuned" else {}
        settings = {key: value for key, value in found.items() if key not in RUN_SETTINGS}
        run = {"rounds": self.rounds} | {key: value for key, value in found.items() if key in RUN_SETTINGS}
        return RunConfig.checked(
            method=self.row.method,
            plugins=self.row.plugins,
            settings={**known, **settings, **self.row.settings},
            data=self.data,
            protocol=self.protocol,
            seed=self.seed,
            device=device,
            **run,
        )
