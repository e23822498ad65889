"""Small data and small methods for all tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from federec.checks import comparing
from federec.cohort.cohort import Step
from federec.cohort.layers import Param, Params, dot, item_rows, mlp, mlp_params
from federec.data.split import Split
from federec.methods.base import DeviceMethod, Method
from federec.methods.registry import METHODS
from federec.plugins.registry import PLUGINS, build

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start: several of them share the cores
settings.register_profile("calm", deadline=None, derandomize=True)
settings.load_profile("calm")

THOROUGH = (
    "tests/cli/test_signals.py",  # start processes
    "tests/cli/test_outside.py",
    "tests/cli/test_new.py",
    "tests/test_docs.py",
    "test_the_examples_run[reproduce]",
    "tests/reproduction/test_pages.py",
    "tests/reproduction/test_summary.py",
    "tests/runtimes/flower/",
    "tests/runtimes/test_distributed.py",
    "tests/test_deploy.py",
    "tests/web/",
    "tests/kernels/",  # compile kernels
    "fused",
    "tests/checks/",  # run all checks
    "mlflow",  # make databases
    "MLflow",
    "many items",
    "tests/network/test_server.py",  # play whole federations
    "tests/network/test_traffic.py",
    "tests/network/test_recommend.py",
    "with_the_same_secrets",
    "tests/runtimes/test_in_process.py",
    "tastes",  # make or train on the whole built-in set
    "a_kernel_takes",
    "-fedmf",  # repeat what `fedmf` shows, with each plug-in
    "test_scoring",
    "pfedrec-hidden",  # repeat what `everything` and `pfedrec` show, with plug-ins on a network
)
"""Tests with one of these in their id are `thorough`, as are those marked one by one: `make quick` leaves them out."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(part in item.nodeid for part in THOROUGH):
            item.add_marker(pytest.mark.thorough)


@pytest.fixture(scope="session")
def split_of() -> Callable[..., Split]:
    return comparing.split_of


@pytest.fixture(scope="session")
def random_split() -> Callable[..., Split]:
    return comparing.random_split


class Everything(DeviceMethod):
    """A parameter of every kind: shared rows and layers, a private vector stepped by Adam, private rows; and a
    server with momentum."""

    name: ClassVar[str] = "everything"

    def shared(self) -> dict[str, Param]:
        return {"items": item_rows(4), **mlp_params("net", (4, 3, 1))}

    def private(self) -> dict[str, Param]:
        return {"user": Param((4,), scale=0.5, adam=True), "own": Param((4,), scale=0.5, rows=True)}

    def score(self, p: Params) -> Tensor:
        return mlp(p, "net", p["items"] + p["own"]) + dot(p["user"], p["items"])

    def step(self, step: Step) -> None:
        self.descend(step, dict.fromkeys((*self.shared(), *self.private()), 0.2))

    def server_start(self, shared: Params) -> Params:
        return {name: torch.zeros_like(value) for name, value in shared.items()}

    def server_step(self, shared: Params, mean: Params, memory: Params) -> Params:
        for name, change in mean.items():
            memory[name].mul_(0.5).add_(change)
        return super().server_step(shared, memory, {})


SMALL = {"dim": 4, "batch": 8, "epochs": 2, "item_lr_factor": 0.2, "item_lr": 2.0}


def _small(name: str, plugins: Sequence[str] = (), **settings: Any) -> Method:
    """A method with small settings; what it has no setting for is left out."""
    if name == "everything":
        return Everything(batch=8, epochs=2)
    fields = METHODS[name].model_fields
    return build(name, plugins, {k: v for k, v in SMALL.items() if k in fields} | settings)


CASES: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "everything": ("everything", (), {}),
    **{name: (name, (), {}) for name, method in METHODS.items() if issubclass(method, DeviceMethod)},
    "pfedrec-hidden": ("pfedrec", (), {"hidden": (5, 3)}),
    **{f"{plugin}-fedmf": ("fedmf", (plugin,), {}) for plugin in PLUGINS},
    **{f"{plugin}-pfedrec-hidden": ("pfedrec", (plugin,), {"hidden": (5, 3)}) for plugin in PLUGINS},
}


@pytest.fixture(scope="session")
def small() -> Callable[..., Method]:
    return _small


REPEATED = (
    *("sam-fedmf", "recency-fedmf", "pfedrec-hidden"),
    *("dualper-pfedrec-hidden", "plgc-pfedrec-hidden", "ldp-pfedrec-hidden"),
)
"""Cases that are `slow`: every method and every plug-in occurs once without them, and hidden layers with two plug-ins.
(On PFedRec `dualper` changes nothing.)"""


MARKED = [pytest.param(case, marks=pytest.mark.slow if case in REPEATED else ()) for case in CASES]


@pytest.fixture(scope="session", params=MARKED)
def device_method(request: pytest.FixtureRequest) -> Method:
    """Every method trained on devices, in turn, and every plug-in."""
    name, plugins, settings = CASES[request.param]
    return _small(name, plugins, **settings)
