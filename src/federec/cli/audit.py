"""`federec audit`: attack a run as a curious server would."""

from __future__ import annotations

from pathlib import Path

import typer
from typer import Argument, Option

from federec.cli.names import AUDITS, one_of
from federec.cli.output import JSON

ATTACK = Option(
    None,
    "--attack",
    autocompletion=one_of(*AUDITS),
    help="An attack: rows, size, sum, direction, difference or shadow; may be repeated. [default: all]",
)


def audit(
    run: Path = Argument(..., readable=False, help="A run folder."),
    users: int = Option(100, min=1, help="How many users to attack, drawn at random."),
    attack: list[str] = ATTACK,
    canaries: int = Option(10_000, min=0, help="Canaries, which measure a promised epsilon; 0 for none."),
    as_json: bool = JSON,
) -> None:
    """Attack a run as a curious server would.

    Rounds of the run are played again. The attacks read what the server of that run saw, single messages or sums, and
    name users' items. Exit code 1: the canaries show more than the promised epsilon.
    """
    from federec.auditing.audit import audit as audited

    found = audited(run, users=users, attacks=attack or (), canaries=canaries)
    typer.echo(found.json() if as_json else str(found))
    if found.kept is False:
        raise typer.Exit(1)
