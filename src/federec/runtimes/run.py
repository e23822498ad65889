"""A finished run: what came out, and a recommender to ask."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from federec.data.interactions import Interactions
from federec.data.sets import Loadable
from federec.data.split import Split, make_split
from federec.errors import UserError
from federec.methods.base import Method
from federec.reporting.report import html_report
from federec.runs.config import RunConfig
from federec.runs.folder import Checkpoint, Line, RunFolder
from federec.runs.loop import Trainer
from federec.runs.recommendation import Recommendation, best
from federec.runtimes.simulation import make_trainer


@dataclass
class Run:
    """A trained method with its figures."""

    config: RunConfig
    method: Method
    """What was trained."""
    result: dict[str, Any] = field(repr=False)
    """What `result.json` holds."""
    history: list[Line] = field(repr=False)
    """One record a round."""
    point: Checkpoint = field(repr=False)
    data: Interactions = field(repr=False)
    ranks: dict[str, Tensor] = field(repr=False)
    """Ranks of the held-out items in the best round, by `valid|test sampled|full`; see `runs.loop.Review`."""

    @property
    def test(self) -> dict[str, dict[str, float]]:
        """Test metrics of the best round: `run.test["sampled"]["hr@10"]`, `run.test["full"]["ndcg@10"]`, ..."""
        test: dict[str, dict[str, float]] = self.result["test"]
        return test

    @property
    def valid(self) -> dict[str, dict[str, float]]:
        """Validation metrics of the best round."""
        valid: dict[str, dict[str, float]] = self.result["valid"]
        return valid

    @cached_property
    def _split(self) -> Split:
        return make_split(self.data, self.config.split, self.config.seed)

    @cached_property
    def _trainer(self) -> Trainer:
        return make_trainer(self.config, self.method, self._split, device_to_ask(self.config))

    def recommend(self, user: int | str, k: int = 10) -> list[Recommendation]:
        """The k best items the user has not touched, as the user's own device ranks them."""
        code = self.data.user_code(user)
        assert self.point.best_state is not None
        scores = self._trainer.scores(self.point.best_state, self.point.best.round, code).cpu()
        known = torch.from_numpy(self.data.items[self.data.users == code]).long()
        return best(scores, known, k, self.data.item_label, self.data.titles)

    def save(self, path: str | Path) -> Path:
        """Write the run folder."""
        folder = RunFolder(path)
        folder.create(self.config)
        for line in self.history:
            folder.add_line(line)
        folder.save(self.point)
        folder.write_result(self.result, self.ranks, html_report(self.result, self.history))
        return folder.path

    @staticmethod
    def load(path: str | Path, data: Loadable | None = None, method: Method | None = None) -> Run:
        """A finished run from its folder. Its data is loaded again, unless given, and its method is found again, unless
        given: one made in an interactive session must be."""
        folder = RunFolder(path)
        result, config = folder.result(), folder.config(method)
        if folder.federated:
            raise UserError(
                f"{path}: is a federation's, only its devices have a whole model; see: federec device recommend"
            )
        if method is None:
            method = config.build()
        for file in config.changed(method):
            warnings.warn(f"{file}: has changed since the run {path} was trained; answers may differ", stacklevel=2)
        point = folder.checkpoint(device_to_ask(config))
        if point is None:
            raise UserError(f"{folder.model}: holds no model; train again")
        loaded = data_of(config, point, data)
        return Run(config, method, result, folder.lines(point.round), point, loaded, folder.ranks())


def data_of(config: RunConfig, point: Checkpoint | None, given: Loadable | None = None) -> Interactions:
    """The data of a run, loaded again unless given. It must be what the run was trained on so far."""
    data = config.load(given)
    if point is not None and fingerprint(data) != point.data:
        raise UserError(f"'{config.data}' has changed since this run was trained on it; bring the old data back")
    return data


def fingerprint(data: Interactions) -> str:
    """SHA-256 of what training sees: rows, times, given parts and labels."""
    digest = hashlib.sha256()
    for array in (data.users, data.items, data.times, data.parts):
        digest.update(b"" if array is None else np.ascontiguousarray(array).data)
    digest.update("\0".join(map(str, (*data.user_ids, *data.item_ids))).encode(errors="backslashreplace"))
    return digest.hexdigest()


def usable(device: str) -> bool:
    """Whether this machine has the device."""
    _, _, index = device.partition(":")
    return device == "cpu" or (torch.cuda.is_available() and int(index or 0) < torch.cuda.device_count())


def device_to_ask(config: RunConfig) -> str:
    """Where a finished run answers: on the device that trained it, or on the CPU of a machine that has no such one."""
    return config.device if usable(config.device) else "cpu"
