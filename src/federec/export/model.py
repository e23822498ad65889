"""What a finished run gives away: its shared parameters, the catalogue, and, where it is asked for, one user's part."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from federec.cohort.layers import ITEMS, USERS, Param, Params
from federec.errors import UserError
from federec.evaluation.metrics import Metrics, headline
from federec.export.precision import Precision, restored, stored
from federec.federation.device import cohorts, keep_private
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.network.catalogue import Catalogue
from federec.network.settings import CATALOGUE
from federec.runs.folder import RunFolder
from federec.runtimes.run import Run
from federec.runtimes.simulation import DeviceTrainer

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Trained:
    """The model of a finished run. A federation's server has no private parameters: there is no `run` to ask then."""

    method: DeviceMethod
    state: State
    """From which the best round's model is made."""
    catalogue: Catalogue
    seed: int
    round: int
    result: dict[str, Any] = field(repr=False)
    run: Run | None = field(default=None, repr=False)

    @staticmethod
    def load(path: str | Path) -> Trained:
        """The model in a run's folder."""
        folder = RunFolder(path)
        result = folder.result()
        if folder.federated:
            config, point = folder.config(), folder.checkpoint()
            if point is None or point.best_state is None:
                raise UserError(f"{folder.model}: holds no model; train again")
            method, catalogue = config.build(), Catalogue.read(folder.path / CATALOGUE)
            return Trained(_on_devices(method), point.best_state, catalogue, config.seed, point.best.round, result)
        run = Run.load(path)
        assert run.point.best_state is not None  # a finished run has it
        catalogue, best = Catalogue.of(run.data), run.point.best
        return Trained(
            _on_devices(run.method), run.point.best_state, catalogue, run.config.seed, best.round, result, run
        )

    @property
    def n_items(self) -> int:
        """The number of items."""
        return len(self.catalogue)


def _on_devices(method: object) -> DeviceMethod:
    if isinstance(method, DeviceMethod):
        return method
    named = getattr(method, "name", method)
    raise UserError(f"'{named}' is not trained on devices; only federated methods can be exported or served")


@dataclass(frozen=True)
class Personal:
    """One user's private part of a model."""

    private: Params
    """[1, ...] private parameters."""
    rows: Params
    """[n_items, dim] private item tables, all rows."""
    tuned: Params
    """[n_items, dim] shared item tables as the user's device tuned them in the round; empty where it tunes none."""
    history: NDArray[np.int64]
    """Codes of the user's items, oldest first."""


def personal(model: Trained, label: str) -> Personal:
    """What the device of a user keeps for itself. Where devices rank with rows that they tune in the round, the round
    is played again for this user."""
    run, method = model.run, model.method
    if run is None:
        raise UserError(
            "a federation's server has no private parameters, only devices do; see: federec device recommend"
        )
    trainer, code = run.trainer, run.data.user_code(label)
    assert isinstance(trainer, DeviceTrainer)
    state, users, tuned = model.state.copy(), torch.tensor([code]), Params()
    devices = trainer.devices
    if trainer.own and int(devices.lengths(users, 0)):
        (cohort,) = cohorts(method, state, devices, users, model.seed, model.round)
        method.fit(cohort)
        keep_private(cohort, state)
        for name, param in method.shared().items():
            if param.rows:
                tuned[name] = state.shared[name].index_copy(0, cohort.rows.ids, cohort.tables[name])
    every = torch.arange(model.n_items)[None]
    first = torch.zeros(1, 1, dtype=torch.int64)
    return Personal(
        {name: state.private[name][users] for name, param in method.private().items() if not param.rows},
        {name: store.take(users, first, every)[0] for name, store in state.stores.items()},
        tuned,
        devices.history(users).items[0].numpy(),
    )


def is_table(param: Param) -> bool:
    """Whether a parameter grows with the catalogue and has rows, each of which can have a scale."""
    return param.rows or (ITEMS in param.shape and len(param.shape) > 1)


@dataclass(frozen=True)
class Given:
    """Shared parameters at a precision. Layers, which are small, keep float32."""

    stored: dict[str, Arrays]
    """For each parameter the arrays of `precision.stored`, rows along all dimensions but the last."""
    shapes: dict[str, tuple[int, ...]]

    @staticmethod
    def of(method: DeviceMethod, shared: Params, precision: Precision) -> Given:
        """The shared parameters of a method, its tables at a precision."""
        found, shapes = {}, {}
        for name, param in method.shared().items():
            if USERS in param.shape:
                raise UserError(f"'{method.name}' keeps values of each user on the server; there is no model to export")
            value = shared[name].detach().cpu().numpy().astype(np.float32)
            shapes[name] = value.shape
            try:
                rows = value.reshape(-1, value.shape[-1]) if is_table(param) else value
                found[name] = stored(rows, precision if is_table(param) else "float32")
            except ValueError as error:
                raise UserError(f"parameter '{name}' of '{method.name}': {error}") from None
        if not found:
            raise UserError(f"'{method.name}' shares nothing; there is no model to export")
        return Given(found, shapes)

    def arrays(self) -> Arrays:
        """Flat, for a file: `NAME`, and `NAME.scales` where it has any."""
        flat = {}
        for name, arrays in self.stored.items():
            shape = self.shapes[name]
            flat[name] = arrays["values"].reshape(shape)
            if "scales" in arrays:
                flat[f"{name}.scales"] = arrays["scales"].reshape(shape[:-1])
        return flat

    def restored(self) -> Params:
        """What a reader of the file computes with."""
        return {
            name: torch.from_numpy(restored(arrays).reshape(self.shapes[name])) for name, arrays in self.stored.items()
        }


def measured(model: Trained, shared: Params) -> dict[str, Metrics]:
    """HR@10 and NDCG@10 of the run's test, sampled and full, where devices get these shared parameters instead."""
    assert model.run is not None
    state = model.state.copy()
    state.shared = {name: value.to(state.shared[name]) for name, value in shared.items()}
    return headline(model.run.trainer.review(state, model.round).test)
