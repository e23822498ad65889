"""Small data and small methods for all tests."""

from typing import ClassVar

import pytest
import torch
from hypothesis import settings

from federec.checks import comparing
from federec.cohort.layers import Param, dot, item_rows, mlp, mlp_params
from federec.methods.base import DeviceMethod
from federec.methods.registry import METHODS
from federec.plugins.registry import PLUGINS, build

torch.set_num_threads(1)
settings.register_profile("calm", deadline=None, derandomize=True)
settings.load_profile("calm")


@pytest.fixture(scope="session")
def split_of():
    return comparing.split_of


@pytest.fixture(scope="session")
def random_split():
    return comparing.random_split


class Everything(DeviceMethod):
    """A parameter of every kind: shared rows and layers, a private vector stepped by Adam, private rows; and a
    server with momentum."""

    name: ClassVar[str] = "everything"

    def shared(self):
        return {"items": item_rows(4), **mlp_params("net", (4, 3, 1))}

    def private(self):
        return {"user": Param((4,), scale=0.5, adam=True), "own": Param((4,), scale=0.5, rows=True)}

    def score(self, p):
        return mlp(p, "net", p["items"] + p["own"]) + dot(p["user"], p["items"])

    def step(self, step):
        self.descend(step, dict.fromkeys((*self.shared(), *self.private()), 0.2))

    def server_start(self, shared):
        return {name: torch.zeros_like(value) for name, value in shared.items()}

    def server_step(self, shared, mean, memory):
        for name, change in mean.items():
            memory[name].mul_(0.5).add_(change)
        return super().server_step(shared, memory, {})


SMALL = {"dim": 4, "batch": 8, "epochs": 2, "item_lr_factor": 0.2, "item_lr": 2.0}


def _small(name, plugins=(), **settings):
    """A method with small settings; what it has no setting for is left out."""
    if name == "everything":
        return Everything(batch=8, epochs=2)
    fields = METHODS[name].model_fields
    return build(name, plugins, {k: v for k, v in SMALL.items() if k in fields} | settings)


CASES = {
    "everything": ("everything", (), {}),
    **{name: (name, (), {}) for name, method in METHODS.items() if issubclass(method, DeviceMethod)},
    "pfedrec-hidden": ("pfedrec", (), {"hidden": (5, 3)}),
    **{f"{plugin}-fedmf": ("fedmf", (plugin,), {}) for plugin in PLUGINS},
    **{f"{plugin}-pfedrec-hidden": ("pfedrec", (plugin,), {"hidden": (5, 3)}) for plugin in PLUGINS},
}


@pytest.fixture(scope="session")
def small():
    return _small


@pytest.fixture(scope="session", params=CASES)
def device_method(request):
    """Every method trained on devices, in turn."""
    name, plugins, settings = CASES[request.param]
    return _small(name, plugins, **settings)
