"""`federec privacy`: what differential privacy costs, before anything is trained."""

from __future__ import annotations

from typing import Any

import typer
from typer import Argument, Option

from federec.cli import options
from federec.cli.output import JSON, show
from federec.errors import UserError

app = typer.Typer(help="Differential privacy: what a setting costs.", no_args_is_help=True)


@app.callback()
def privacy() -> None:
    """Differential privacy: what a setting costs."""


@app.command()
def plan(
    method: str = Argument("pfedrec", autocompletion=options.METHOD_NAMES, help="Name of a method."),
    data: str | None = options.DATA,
    users: int | None = Option(None, min=1, help="Users; with --items instead of data, to plan for what is not there."),
    items: int | None = Option(None, min=1, help="Items of the catalogue."),
    rounds: int | None = options.ROUNDS,
    participation: float | None = options.PARTICIPATION,
    epsilon: float | None = options.EPSILON,
    delta: float | None = options.DELTA,
    max_epsilon: float | None = options.MAX_EPSILON,
    stage: list[str] | None = options.STAGE,
    set_: list[str] | None = options.SET,
    with_: list[str] | None = options.WITH,
    as_json: bool = JSON,
) -> None:
    """Show the noise and epsilon of a run without training it.

    Say which epsilon you want (--epsilon 3), or which noise (--stage clip:norm=1 --stage central-noise:multiplier=1).
    """
    from federec.cli.train import parse_settings
    from federec.reporting.tables import rows_table
    from federec.runs import plan as plans
    from federec.runs.budget import resolved
    from federec.runs.config import RunConfig
    from federec.stages.registry import parse

    if (users is None) != (items is None) or (users is not None and data is not None):
        raise UserError("give --users and --items, or --data")
    given: dict[str, Any] = {"method": method, "data": data, "rounds": rounds, "participation": participation}
    given |= {"epsilon": epsilon, "delta": delta, "max_epsilon": max_epsilon}
    given |= {"plugins": tuple(with_ or ()), "settings": parse_settings(set_ or [])}
    given |= {"channel": tuple(parse(stage)) if stage else None}
    config = RunConfig.checked(**{key: value for key, value in given.items() if value is not None})
    if users is None or items is None:
        loaded = config.load()
        users, items = loaded.n_users, loaded.n_items
    built = config.build()
    found = plans.plan(resolved(config, built, users, items), built, users, items)

    def table(found: dict[str, Any]) -> Any:
        return rows_table([{"name": name, "value": value} for name, value in _shown(found)], "", "")

    show({"method": method, **found}, as_json, table)
    if not as_json:
        for sentence in plans.remarks(found):
            typer.echo(sentence)


def _shown(found: dict[str, Any]) -> list[tuple[str, str]]:
    """A plan for people."""
    rows = [
        ("users", f"{found['users']:,}"),
        ("devices in a round", f"{found['devices_a_round']:,}"),
        ("rounds that cost privacy", f"{found['rounds']:,}"),
        ("values in an update", f"{found['values']:,}"),
        ("noise", found["noise"]),
        ("noise multiplier", f"{found['noise_multiplier']:.4g}"),
        ("norm that updates are clipped to", f"{found['clip']:g}{' at first' if found['follows'] else ''}"),
        ("delta", f"{found['delta']:g}"),
    ]
    rows += [(f"epsilon by {by.upper()}", f"{value:.4g}") for by, value in found["epsilon"].items()]
    return [
        *rows,
        ("epsilon of one round", f"{found['epsilon_of_one_round']:.4g}"),
        ("noise on each value of the mean / norm", f"{found['noise_per_value_of_the_mean']:.3g}"),
        ("length of the noise / longest sum", f"{found['noise_to_longest_sum']:.3g}"),
    ]
