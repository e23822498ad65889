"""`federec report`: a finished run, or several, as a page for people."""

from __future__ import annotations

from pathlib import Path

import typer
from typer import Argument, Option

from federec.cli.compare import finished
from federec.cli.names import METRICS, one_of
from federec.errors import UserError


def report(
    runs: list[Path] = Argument(..., readable=False, help="Run folders."),
    out: Path | None = Option(
        None,
        "--out",
        "-o",
        readable=False,
        help="The HTML file to write. [default: report.html in the folder of one run; compare.html for several]",
    ),
    baseline: Path | None = Option(
        None, readable=False, help="The run to compare the others with. [default: the first one]"
    ),
    metric: str | None = Option(
        None,
        autocompletion=one_of(*METRICS),
        help="The metric of the differences, such as sampled.hr@10. [default: full.ndcg@10]",
    ),
) -> None:
    """Write a page about a run, or one that compares several.

    The page is one HTML file that needs no network. Folders that hold no finished run are left out.
    """
    from federec.files import write_atomic
    from federec.runs.record import RunRecord

    if out is not None and out.is_dir():
        raise UserError(f"{out}: is a folder; name a file, such as {out / 'compare.html'}")
    folders = finished(runs)
    if len(folders) == 1 and baseline is None and metric is None:
        from federec.runtimes.report import report_of

        path = out or folders[0] / "report.html"
        write_atomic(path, report_of(RunRecord(folders[0])))
    else:
        from federec.reproduction.report import comparison_report

        path = out or Path("compare.html")
        write_atomic(path, comparison_report(folders, baseline, metric or "full.ndcg@10"))
    typer.echo(f"report {path}")
