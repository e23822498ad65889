"""`federec export`: the model of a run as files that other programs read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

from federec.cli.names import FORMATS, PRECISIONS, one_of
from federec.cli.output import JSON, show


def export(
    run: Path = Argument(..., readable=False, help="A run folder."),
    kind: str = Option(
        ..., "--format", autocompletion=one_of(*FORMATS), help="onnx, safetensors, or web: a page that runs the model."
    ),
    out: Path = Option(..., readable=False, help="A new folder."),
    precision: str = Option(
        None,
        autocompletion=one_of(*PRECISIONS),
        help="Item tables as float32, float16 or int8; their loss of HR and NDCG is measured. "
        "[default: float32; int8 for web]",
    ),
    user: str = Option(
        None, help="Put this user's private parameters in, too. Then the folder holds private data. [default: nobody's]"
    ),
    as_json: bool = JSON,
) -> None:
    """Export the model of a run.

    The folder has the shared item tables, the score function, and the catalogue with titles. ONNX is compared with
    torch before it is written.
    """
    from federec.errors import UserError, did_you_mean

    for value, known, name in ((kind, FORMATS, "--format"), (precision or "float32", PRECISIONS, "--precision")):
        if value not in known:
            raise UserError(f"{name} {value}: is not known{did_you_mean(value, known)}")
    if kind == "web":
        _web(run, out, precision or "int8", user)
        return
    from federec.export.write import export as written

    found = written(run, out, kind, precision or "float32", user)  # type: ignore[arg-type]
    if user is not None:
        typer.echo(f"{out} holds private data of user '{user}': keep it where only this user can read it", err=True)
    rows: dict[str, Any] = {
        "folder": str(found.folder),
        "model": found.model.name,
        "bytes": found.bytes,
        "float32_bytes": found.float32_bytes,
        "onnxruntime_and_torch_differ_by": found.difference,
        "test": found.before,
        "test_as_stored": found.after,
    }
    show(rows, as_json, _table)


def _web(run: Path, out: Path, precision: str, user: str | None) -> None:
    from federec.errors import UserError
    from federec.web.folder import write_web

    if user is not None:
        raise UserError("a page holds nobody's private parameters; leave --user out")
    path = write_web(run, out, precision)  # type: ignore[arg-type]
    typer.echo(f"{path}: open it with: federec web {run}, or put the folder on any web server")


def _table(found: dict[str, Any]) -> None:
    from federec.reporting.tables import rows_table

    size, whole = found["bytes"], found["float32_bytes"]
    smaller = f", 1/{whole / size:.2f} of float32" if size < whole else ""
    typer.echo(f"{Path(found['folder']) / found['model']}: {size:,} bytes{smaller}")
    if found["onnxruntime_and_torch_differ_by"] is not None:
        typer.echo(f"onnxruntime and torch differ by at most {found['onnxruntime_and_torch_differ_by']:.1e}")
    before, after = found["test"], found["test_as_stored"]
    if before is None:
        typer.echo("a federation's test items are on its devices, so what the precision costs is not known here")
        return
    rows = [
        {
            "": {"sampled": "test, against 99 items", "full": "test, against all items"}[ranking] + f", {metric}",
            "float32": f"{value:.4f}",
            "as exported": f"{after[ranking][metric]:.4f}",
            "points lost": f"{100 * (value - after[ranking][metric]):.2f}",
        }
        for ranking, metrics in before.items()
        for metric, value in metrics.items()
    ]
    rows_table(rows, "", "float32", "as exported", "points lost")
