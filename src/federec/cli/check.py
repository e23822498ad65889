"""`federec check`: whether a method or plug-in has the properties that all of federec's have."""

from __future__ import annotations

import typer
from typer import Argument

from federec.cli.names import METHODS, PLUGINS, one_of
from federec.cli.output import JSON, show


def check(
    reference: str = Argument(
        ...,
        autocompletion=one_of(*METHODS, *PLUGINS),
        help="A method or plug-in: path/to/mine.py:Mine, package.module:Mine or a name. A plug-in is put on fedmf "
        "and pfedrec.",
    ),
    as_json: bool = JSON,
) -> None:
    """Check a method or plug-in on small generated data.

    The exit code is 1 where a property does not hold.
    """
    import torch

    from federec.checks.suite import suite, verdict
    from federec.reporting.tables import rows_table

    torch.set_num_threads(1)  # the data is small: more threads would only wait for each other
    verdicts = [verdict(one) for one in suite(reference)]
    words = ["info" if one.check.informs else "passed" if one.passed else "FAILED" for one in verdicts]
    rows = [
        {"check": one.check.name, "verdict": word, "saw": one.saw} for one, word in zip(verdicts, words, strict=True)
    ]
    show(rows, as_json, lambda rows: rows_table(rows, "check", "", "seen"))
    failed = words.count("FAILED")
    if not as_json:
        typer.echo(f"{failed} of {len(words)} checks failed" if failed else "all checks passed")
    if failed:
        raise typer.Exit(1)
