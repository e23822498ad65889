"""`federec check`: whether a method or plug-in has the properties that all of federec's have."""

from __future__ import annotations

import typer
from typer import Argument


def check(
    reference: str = Argument(
        ...,
        help="A method or plug-in: path/to/mine.py:Mine, package.module:Mine or a name. A plug-in is put on fedmf "
        "and pfedrec.",
    ),
) -> None:
    """Check a method or plug-in on small generated data; exit code 1 where a property does not hold."""
    import torch

    from federec.checks.suite import suite, verdict
    from federec.reporting.tables import verdicts_table

    torch.set_num_threads(1)  # the data is small: more threads would only wait for each other
    verdicts = [verdict(one) for one in suite(reference)]
    words = ["info" if one.check.informs else "passed" if one.passed else "FAILED" for one in verdicts]
    verdicts_table((one.check.name, word, one.saw) for one, word in zip(verdicts, words, strict=True))
    if failed := words.count("FAILED"):
        typer.echo(f"{failed} of {len(words)} checks failed")
        raise typer.Exit(1)
    typer.echo("all checks passed")
