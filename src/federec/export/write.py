"""The folder of an exported model.

export.json        what it is: method, settings, precision, what it costs in HR and NDCG, how to read the rest
catalogue.json     items and their titles; an item's code is its place
model.onnx         with `onnx`: the score function, parameters inside
model.safetensors  with `safetensors`: the shared parameters; of a table in int8 also NAME.scales, one per row
private.safetensors  with `safetensors` and a user: that user's private parameters and history
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import save
from torch import Tensor

import federec
from federec.errors import UserError
from federec.evaluation.metrics import Metrics, headline
from federec.export.model import Arrays, Given, Personal, Trained, measured, personal
from federec.export.onnx import Score, compared, graph
from federec.export.precision import Precision
from federec.files import as_path, make_folder, write_atomic

Format = Literal["onnx", "safetensors"]
INFO, CATALOGUE = "export.json", "catalogue.json"


@dataclass(frozen=True)
class Export:
    """What was written, and what is known of it."""

    folder: Path
    model: Path
    float32_bytes: int
    """Bytes that the same file takes in float32."""
    before: dict[str, Metrics] | None
    """HR@10 and NDCG@10 of the run's test; None for a federation's run, whose test items are on its devices."""
    after: dict[str, Metrics] | None
    """The same with the tables as they are stored."""
    difference: float | None
    """Of ONNX: how far onnxruntime and torch are apart, at most."""

    @property
    def bytes(self) -> int:
        """Size of the model's file."""
        return self.model.stat().st_size


def export(
    run: str | Path, out: str | Path, kind: Format = "onnx", precision: Precision = "float32", user: str | None = None
) -> Export:
    """Write the model of a run into a new folder. With a `user` it holds that user's private parameters, too, and only
    the owner can read its files."""
    folder = as_path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists already; choose another folder")
    model = Trained.load(run)
    given = Given.of(model.method, model.state.shared, precision)
    own = None if user is None else personal(model, user)
    before = None if model.run is None else headline(model.result["test"])
    after = before if precision == "float32" or before is None else measured(model, given.restored())
    difference = None
    if kind == "onnx":
        content, difference = _onnx(model, given, own)
        files = {"model.onnx": content}
        whole = _onnx(model, Given.of(model.method, model.state.shared, "float32"), own)[0]
    else:
        files = {"model.safetensors": save(given.arrays())}
        whole = save(Given.of(model.method, model.state.shared, "float32").arrays())
        if own is not None:
            files["private.safetensors"] = save(_private(own))
    name = next(iter(files))
    about = _about(model, precision, own) | {
        "model": {"file": name, "bytes": len(files[name]), "float32_bytes": len(whole)},
        "test": before,
        "test_as_stored": after,
        **({} if difference is None else {"onnxruntime_and_torch_differ_by": difference}),
    }
    files[CATALOGUE] = model.catalogue.text().encode()
    files[INFO] = (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode()  # last: then all is there
    make_folder(folder)
    before_mask = os.umask(0o077) if user is not None else None
    try:
        for file, data in files.items():
            write_atomic(folder / file, data)
    finally:
        if before_mask is not None:
            os.umask(before_mask)
    return Export(folder, folder / name, len(whole), before, after, difference)


def _onnx(model: Trained, given: Given, own: Personal | None) -> tuple[bytes, float]:
    """A graph, and how far it is from torch. A graph that is not the method's function is not written."""
    score = Score(model.method, given.restored(), own).eval()
    content = graph(score, given, model.n_items)
    found = compared(content, score, model.n_items)
    if not found.fine:
        raise UserError(
            f"'{model.method.name}' as ONNX differs from torch by {found.difference:.1e}; use --format safetensors"
        )
    return content, found.difference


def _private(own: Personal) -> Arrays:
    named: dict[str, dict[str, Tensor]] = {"private": own.private, "rows": own.rows, "tuned": own.tuned}
    flat: Arrays = {"history": own.history}
    for kind, values in named.items():
        flat |= {f"{kind}:{name}": np.ascontiguousarray(value.numpy()) for name, value in values.items()}
    return flat


def _about(model: Trained, precision: Precision, own: Personal | None) -> dict[str, Any]:
    method = model.method
    form = method.fused_form(model.n_items)
    score = (
        {"form": type(form).__name__}
        | {key: value for key, value in dataclasses.asdict(form).items() if isinstance(value, str | list | tuple)}
        if dataclasses.is_dataclass(form)
        else {"form": method.name}
    )
    inputs = Score(method, {}, own).inputs if method.shared() else {}
    return {
        "format": 1,
        "federec": federec.__version__,
        "method": method.name,
        "plugins": list(method.plugins),
        "settings": method.model_dump(mode="json"),
        "data": model.result["data"],
        "round": model.round,
        "items": model.n_items,
        "precision": precision,
        "holds_private_data": own is not None,
        "score": score,
        "inputs": list(inputs),
    }
