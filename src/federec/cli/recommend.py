"""`federec recommend`: ask a trained run what a user might like."""

from __future__ import annotations

from pathlib import Path

from typer import Argument, Option


def recommend(
    run: Path = Argument(..., readable=False, help="A run folder."),
    user: str = Option(..., help="The user's id, as in the data."),
    k: int = Option(10, "-k", help="How many items."),
    titles: bool = Option(False, "--titles", help="Show titles, where the data has them."),
) -> None:
    """The k best items a user has not touched, as the user's own device ranks them."""
    from federec.errors import UserError
    from federec.reporting.tables import items_table
    from federec.runtimes.run import Run

    loaded = Run.load(run)
    if titles and not loaded.data.titles:
        raise UserError(f"'{loaded.data.name}' has no titles; leave out --titles")
    items = loaded.recommend(user, k)
    if not items:
        raise UserError(f"there is nothing left to recommend to '{user}': every item is known, or the model diverged")
    items_table(items, titles)
