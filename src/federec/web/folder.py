"""A run as a folder of static files: the page, for any file host."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from safetensors.numpy import save

from federec import __version__
from federec.errors import UserError
from federec.export.precision import Precision
from federec.files import as_path, make_folder, read_bytes, write_atomic
from federec.methods.base import DeviceMethod
from federec.network.catalogue import Catalogue
from federec.network.policy import SECURE
from federec.runs.folder import RunFolder
from federec.runtimes.run import data_of
from federec.stages.registry import plain
from federec.web.model import page_model

STATIC = Path(__file__).parent / "static"
_ROOT = "page.json"
_FILES = "/* FILES */"
"""In the service worker: where the list of the page's files is written."""
MOST_ITEMS = 200_000
"""A longer catalogue takes a phone too long to search."""


def write_web(run: str | Path, out: str | Path, precision: Precision = "int8") -> Path:
    """Write the page of a run into the folder `out`, and give back its path. The folder must be new or empty, or hold
    an earlier page, which is replaced."""
    path = as_path(out)
    if path.exists() and not (path / _ROOT).is_file() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path}: exists and holds no page; choose another folder")
    files = page_files(run, precision)
    for name, content in files.items():
        make_folder((path / name).parent)
        write_atomic(path / name, content)
    return path


def page_files(run: str | Path, precision: Precision = "int8", gateway: str = "") -> dict[str, bytes]:
    """All files of a run's page by their names, which are relative addresses. `gateway` is that of a federation's
    gateway, if the page is to join one."""
    folder = RunFolder(run)
    result, config = folder.result(), folder.config()
    method, point = config.build(), folder.checkpoint()
    if point is None or point.best_state is None:
        raise UserError(f"{folder.model}: holds no model; train again")
    federated = folder.federated
    catalogue = Catalogue.read(folder.path / "catalogue.json") if federated else Catalogue.of(data_of(config, point))
    if len(catalogue) > MOST_ITEMS:
        raise UserError(f"a page holds at most {MOST_ITEMS:,} items, and this run has {len(catalogue):,}")
    model = page_model(method, point.best_state.shared, point.best.round, config.seed, precision)
    channel = None
    if isinstance(method, DeviceMethod):  # a simulation without stages is shown as a federation would send it
        asked = config if config.channel or federated else config.model_copy(update={"channel": SECURE})
        channel = [plain(stage) for stage in asked.link(method).channel.stages]
    files = {
        "model.safetensors": save(model.tensors),
        "catalogue.json": catalogue.text().encode(),
    }
    page = {
        "format": 1,
        "federec": __version__,
        "name": result["data"]["name"],
        "method": "+".join((method.name, *method.plugins)),
        "items": len(catalogue),
        "rounds": point.best.round,
        "seed": config.seed,
        "precision": precision,
        "channel": channel,
        "model": _digest(files),
        "gateway": gateway,
        **model.settings,
    }
    files[_ROOT] = json.dumps(page).encode()
    for file in sorted(STATIC.rglob("*")):
        if file.is_file():
            files[file.relative_to(STATIC).as_posix()] = read_bytes(file)
    worker = files.pop("sw.js").decode()
    listed = json.dumps({"version": _digest(files), "files": ["./", *sorted(files)]})
    assert _FILES in worker
    return files | {"sw.js": worker.replace(_FILES, listed).encode()}


def _digest(files: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name} {len(content)} ".encode() + content)
    return digest.hexdigest()[:16]
