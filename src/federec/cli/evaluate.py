"""`federec evaluate`: rank a finished run's test items again, or for devices that know next to nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer import Argument, Option

from federec.cli.output import JSON, show


def evaluate(
    run: Path = Argument(..., readable=False, help="A run folder."),
    cold_start: bool = Option(
        False, "--cold-start", help="For new devices that know 0, 1, 3 or 5 items, and for items that nobody has yet."
    ),
    as_json: bool = JSON,
) -> None:
    """Evaluate a finished run again.

    Its test items are ranked with the model in its folder. With --cold-start users stand in for new devices: they have
    the shared parameters and their last few items before the test item, and nothing that they learned in the run.
    """
    from federec.runtimes.run import Run

    loaded = Run.load(run)
    if cold_start:
        from federec.runtimes.cold import cold_start as measured

        show(measured(loaded), as_json, _cold_table)
        return
    from federec.evaluation.metrics import headline

    assert loaded.point.best_state is not None  # a finished run has it
    again = loaded.trainer.review(loaded.point.best_state, loaded.point.best.round).test
    show({"now": headline(again), "result": headline(loaded.test)}, as_json, _table)


def _table(found: dict[str, Any]) -> None:
    from federec.reporting.tables import rows_table

    titles = {"now": "now", "result": "in result.json"}
    rows_table([_row(titles[name], metrics) for name, metrics in found.items()], *_TITLES)


def _cold_table(found: dict[str, Any]) -> None:
    import typer

    from federec.reporting.tables import rows_table

    rows = [_row("popularity", found["popularity"])]
    for known, metrics in found["users"].items():
        rows.append(_row(f"a new device with {known} {'item' if known == '1' else 'items'}", metrics))
    rows_table([*rows, _row("devices of the run", found["trained"])], *_TITLES)
    new = found["new_items"]
    drawn = f"; with rows drawn at random {new['random_row']:.1%}" if "random_row" in new else ""
    typer.echo(
        f"{new['items']} new items that nobody has take {new['mean_row']:.1%} of the first ten places of devices that "
        f"know 5 items{drawn}; their fraction of the catalogue is {new['fair']:.1%}"
    )


_TITLES = ("test", "full ndcg@10", "full hr@10", "sampled ndcg@10", "sampled hr@10")


def _row(name: str, metrics: dict[str, dict[str, float]]) -> dict[str, str]:
    figures = {
        f"{ranking} {metric}": f"{metrics[ranking][metric]:.4f}"
        for ranking in ("full", "sampled")
        for metric in ("ndcg@10", "hr@10")
    }
    return {"test": name, **figures}
