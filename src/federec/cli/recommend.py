"""`federec recommend`: ask a trained run what a user might like."""

from __future__ import annotations

from pathlib import Path

from typer import Argument, Option

from federec.cli.output import JSON, show


def recommend(
    run: Path = Argument(..., readable=False, help="A run folder."),
    user: str = Option(..., help="The user's id, as in the data."),
    k: int = Option(10, "-k", help="How many items."),
    titles: bool = Option(True, "--titles/--no-titles", help="Show titles, where the data has them."),
    as_json: bool = JSON,
) -> None:
    """Recommend items to a user of a run.

    These are the k best items that the user does not have, ranked as the user's own device ranks them.
    """
    from federec.errors import UserError
    from federec.reporting.tables import items_rows, items_table
    from federec.runtimes.run import Run

    loaded = Run.load(run)
    items = loaded.recommend(user, k)
    if not items:
        raise UserError(f"there is nothing left to recommend to '{user}': every item is known, or the model diverged")
    shown = items if titles else [item._replace(title="") for item in items]
    show(items_rows(shown), as_json, items_table)
