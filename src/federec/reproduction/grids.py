"""The published tables: which rows, on which data, and which claims they are to decide."""

from __future__ import annotations

from dataclasses import dataclass

from federec.errors import UserError, did_you_mean
from federec.reproduction.cells import Row


@dataclass(frozen=True)
class Grid:
    """One results page."""

    name: str
    title: str
    text: str
    rows: tuple[Row, ...]
    data: tuple[str, ...]
    claims: tuple[tuple[str, str], ...] = ()
    """Pairs of row labels: is the first better than the second?"""


def _row(method: str, *plugins: str, **settings: object) -> Row:
    shown = " ".join(f"{key}={value}" for key, value in settings.items())
    return Row(" ".join(filter(None, ["+".join([method, *plugins]), shown])), method, plugins, dict(settings))


def _reference(method: str) -> Row:
    return Row(method, method, federated=False)


CONTROLS = tuple(map(_reference, ("popularity", "negative-count", "ease", "ials")))
_ALL_DATA = ("ml-100k", "ml-1m", "lastfm-2k", "amazon-video")

GRIDS = {
    grid.name: grid
    for grid in (
        Grid(
            "pfedrec-table2",
            "PFedRec, Table 2: overall comparison",
            "Dual personalisation against centralised and federated baselines.",
            (
                *map(_reference, ("ncf", "mf")),
                *map(_row, ("fedmf", "fedncf", "fedrecon", "metamf", "fedpergnn", "pfedrec")),
                *map(_row, ("fcf", "fedals", "fedease")),
                *CONTROLS,
            ),
            _ALL_DATA,
            (("pfedrec", "fedmf"), ("pfedrec", "ease"), ("pfedrec", "popularity"), ("fedease", "pfedrec")),
        ),
        Grid(
            "pfedrec-table3",
            "PFedRec, Table 3: dual personalisation on other methods",
            "Each base method with and without the plug-in `dualper`.",
            tuple(row for method in ("fedmf", "fedncf", "fedrecon") for row in (_row(method), _row(method, "dualper"))),
            _ALL_DATA,
            tuple((f"{method}+dualper", method) for method in ("fedmf", "fedncf", "fedrecon")),
        ),
        Grid(
            "pfedrec-table4",
            "PFedRec, Table 4: Laplace noise on uploads",
            "PFedRec with the plug-in `ldp`.",
            tuple(
                Row(f"pfedrec laplace={scale:g}", "pfedrec", ("ldp",), {"laplace": scale})
                for scale in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
            ),
            _ALL_DATA,
            (("pfedrec laplace=0.5", "pfedrec laplace=0"),),
        ),
    )
}


def grid(name: str) -> Grid:
    """The grid of that name."""
    if name not in GRIDS:
        raise UserError(f"unknown table '{name}'{did_you_mean(name, GRIDS)}")
    return GRIDS[name]
