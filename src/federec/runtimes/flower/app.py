"""The Flower app of a federation's folder: `flwr run FOLDER/app` starts or continues the run."""

from __future__ import annotations

from pathlib import Path

from federec.files import make_folder, write_atomic
from federec.network import settings as federation
from federec.network.catalogue import Catalogue
from federec.network.settings import FederationSettings
from federec.runs.config import RunConfig

APP = "app"
CLIENT = "federec.runtimes.flower.client:app"

_PROJECT = """\
[project]
name = "federec-run"
version = "1.0.0"
description = "A federation of federec"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "federec"

[tool.flwr.app.components]
serverapp = "federec.runtimes.flower.server:app"
clientapp = "{client}"

[tool.flwr.app.config]
folder = '{folder}'
"""


def prepare(
    path: Path, config: RunConfig, settings: FederationSettings, catalogue: Catalogue, client: str = CLIENT
) -> None:
    """A new federation's folder, with the app that runs it on Flower."""
    federation.prepare(path, config, settings, catalogue)
    make_folder(path / APP)
    write_atomic(path / APP / "pyproject.toml", _PROJECT.format(client=client, folder=path.resolve()))
