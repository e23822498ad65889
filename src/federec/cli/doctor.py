"""`federec doctor`: what is installed, what is missing, and the command that installs it."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

import typer

from federec.cli.output import JSON, show

_PACKAGES = ("numpy", "pydantic", "pyyaml", "rich", "safetensors", "typer")
_EXTRAS = {
    "torch": "train",
    "numba": "train",
    "polars": "train",
    "scipy": "train",
    "threadpoolctl": "train",
    "cryptography": "device",
    "dp-accounting": "privacy",
    "fastapi": "serve",
    "flwr": "flower",
    "matplotlib": "results",
    "mlflow-skinny": "mlflow",
    "onnx": "export",
    "onnxruntime": "export",
    "optuna": "results",
    "scikit-learn": "results",
    "tensorboard": "tensorboard",
    "uvicorn": "serve",
}
"""Packages that only some commands need -> the extra that installs them."""


def doctor(as_json: bool = JSON) -> None:
    """Check this installation. The exit code is 1 if a required package is missing."""
    import federec
    from federec.reporting.tables import rows_table

    checks = [
        ("federec", f"{federec.__version__}, Python {platform.python_version()}, {platform.machine()}", ""),
        *(_package(name, "federec") for name in _PACKAGES),
        *(_package(name, f"'federec[{extra}]'") for name, extra in _EXTRAS.items()),
        *_hardware(),
        *_data(),
    ]
    rows = [{"name": name, "found": found, "to_mend": remedy} for name, found, remedy in checks]
    show(rows, as_json, lambda rows: rows_table(rows, "", "found", "to mend"))
    if any(name in _PACKAGES and remedy for name, _, remedy in checks):
        raise typer.Exit(1)


def _package(name: str, requirement: str) -> tuple[str, str, str]:
    try:
        return name, metadata.version(name), ""
    except metadata.PackageNotFoundError:
        return name, "missing", f"pip install {requirement}"


def _hardware() -> list[tuple[str, str, str]]:
    threads = os.environ.get("OMP_NUM_THREADS")
    try:
        import torch
    except ImportError:
        return []
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none usable; runs use --device cpu"
    used = f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    return [("threads", f"{used} (OMP_NUM_THREADS={threads or 'not set'})", ""), ("GPU", gpu, ""), *_processor()]


def _processor() -> list[tuple[str, str, str]]:
    """A line about `OPENBLAS_CORETYPE` where it is set, as on some clusters: with the name of a processor without wide
    registers, methods whose kernels multiply matrices take nearly twice as long."""
    name = os.environ.get("OPENBLAS_CORETYPE")
    told = f"{name}: matrices are multiplied with the instructions of that processor only"
    return [("OPENBLAS_CORETYPE", told, "unset OPENBLAS_CORETYPE, if this processor is newer")] if name else []


def _data() -> list[tuple[str, str, str]]:
    from federec.data.sets import status
    from federec.files import cache

    own = os.environ.get("FEDEREC_DATA")
    where = "not set" if not own else own if Path(own).is_dir() else f"{own} (no such folder)"
    lines = [("FEDEREC_DATA", where, ""), ("cache", str(cache()), "")]
    for known, path in status():
        if known.built_in:
            lines.append((f"data {known.name}", "built in", ""))
        elif path is not None:
            lines.append((f"data {known.name}", str(path), ""))
        else:
            lines.append((f"data {known.name}", "not here", known.get))
    return lines
