"""The published tables: their rows, their data sets, and the claims that they decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from federec.errors import UserError, did_you_mean
from federec.methods.presets import presets
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
    tried: Mapping[str, str] = field(default_factory=dict)
    """Row label -> what was tried to reach its published figures. The page says it where they are missed."""
    dimensions: bool = False
    """Whether the page also shows how many dimensions of its item tables each row uses."""


def _row(method: str, *plugins: str, **settings: object) -> Row:
    shown = " ".join(f"{key}={value}" for key, value in settings.items())
    return Row(" ".join(filter(None, ["+".join([method, *plugins]), shown])), method, plugins, dict(settings))


def _reference(method: str) -> Row:
    return Row(method, method, federated=False)


CONTROLS = tuple(map(_reference, ("popularity", "negative-count", "ease", "ials")))
_ALL_DATA = ("ml-100k", "ml-1m", "lastfm-2k", "amazon-video")
_PFEDREC_DATA = ("ml-100k", "ml-1m", "lastfm-2k", "lastfm-2k-tags", "amazon-video")

ABOUT = {
    "lastfm-2k": "Here a (user, artist) pair counts once, so what is held out is new to the user. PFedRec's file has a "
    "row for every tag that a user gave an artist: its published figures are in the section lastfm-2k-tags.",
    "lastfm-2k-tags": "This is Lastfm-2K as PFedRec published it: a row for every tag that a user gave an artist, with "
    "repeated (user, artist) pairs kept. Half of the users (51 %) have their test artist in training, too, under "
    "another tag. Compare only `paper` with the published figures. `clean` does not remove this: it never draws the "
    "held-out artist as a negative where the user has it in training, and ranks it although it is known. What `clean` "
    "shows here is how well a method remembers, so the section lastfm-2k decides.",
    "filmtrust": "This set has no times: which item is held out is drawn at random.",
    "lastfm-listens": "This set has no times: which item is held out is drawn at random.",
}
"""Data set -> what a reader must know about it."""

_TRIED = {
    "ncf": "larger mini-batches, larger steps and a wider start on ML-100K; all were worse on validation",
    "metamf": "eight short runs with other step sizes of the server, and with all devices in every round",
    "fedpergnn": "published near chance because the original learns rating values; here it learns to rank",
    "fedrecon": "four combinations of step size and passes, chosen on validation",
    "fedrecon+dualper": "fifteen combinations of step size, passes and batch size on ML-100K, and all samples "
    "instead of the query half",
    "fedncf+dualper": "seventeen settings of fedncf on ML-100K and five on ML-1M; nothing on the other sets",
}

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
                *map(_row, ("fedrap", "fedrecgel", "fcf", "fedals", "fedease")),
                Row("fedease recency", "fedease", settings=presets("fedease")["recency"]),
                *(_row(method, "recency") for method in ("fedmf", "pfedrec")),
                _reference("lightgcn"),
                *CONTROLS,
            ),
            _PFEDREC_DATA,
            (
                ("pfedrec", "fedmf"),
                ("pfedrec", "ease"),
                ("pfedrec", "popularity"),
                ("fedease", "pfedrec"),
                ("fedease recency", "fedease"),
                ("fedease recency", "ials"),
                ("fedmf+recency", "fedmf"),
                ("pfedrec+recency", "pfedrec"),
            ),
            _TRIED,
        ),
        Grid(
            "pfedrec-table3",
            "PFedRec, Table 3: dual personalisation on other methods",
            "Each base method with and without the plug-in `dualper`.",
            tuple(row for method in ("fedmf", "fedncf", "fedrecon") for row in (_row(method), _row(method, "dualper"))),
            _PFEDREC_DATA,
            tuple((f"{method}+dualper", method) for method in ("fedmf", "fedncf", "fedrecon")),
            _TRIED,
        ),
        Grid(
            "pfedrec-table4",
            "PFedRec, Table 4: Laplace noise on uploads",
            "PFedRec with the plug-in `ldp`.",
            tuple(
                Row(f"pfedrec laplace={scale:g}", "pfedrec", ("ldp",), {"laplace": scale})
                for scale in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
            ),
            _PFEDREC_DATA,
            (("pfedrec laplace=0.5", "pfedrec laplace=0"),),
        ),
        Grid(
            "fedrap",
            "FedRAP: additive personalisation, its schedules and ablations",
            "FedRAP against other methods, with each schedule, and without each of its parts. The paper shows its main "
            "results as curves; the authors' log has HR@10 98.6 to 98.9 on ML-100K and 91.6 on ML-1M.",
            (
                *map(_row, ("fedmf", "pfedrec", "fedrap")),
                *(_row("fedrap", schedule=name) for name in ("sin", "square", "frac", "fixed")),
                *(_row("fedrap", parts=name) for name in ("common", "own")),
                *(_row("fedrap", norm=name) for name in ("l2", "nuclear")),
                *(_row("fedrap", **{weight: 0.0}) for weight in ("v1", "v2")),
                *CONTROLS,
            ),
            ("ml-100k", "ml-1m", "lastfm-listens", "amazon-video-10"),
            (("fedrap", "fedmf"), ("fedrap", "pfedrec"), ("fedrap", "ease"), ("fedrap", "popularity")),
        ),
        Grid(
            "plgc",
            "PLGC: local-global collaboration on other methods",
            "Each base method with and without the plug-in `plgc`, and with each of its two parts. The paper's "
            "equations were not available: this is one reading of its abstract (see [methods](../methods.md)).",
            tuple(
                row
                for method in ("fedmf", "fedncf", "pfedrec", "fedrap")
                for row in (
                    _row(method),
                    _row(method, "plgc"),
                    _row(method, "plgc", beta=0.0),
                    _row(method, "plgc", mix="fixed"),
                )
            ),
            (*_ALL_DATA, "filmtrust"),
            tuple((f"{method}+plgc", method) for method in ("fedmf", "fedncf", "pfedrec", "fedrap")),
            dimensions=True,
        ),
        Grid(
            "fedrecgel",
            "FedRecGEL: sharpness-aware minimisation",
            "FedRecGEL without each of its two perturbations, and the plug-in `sam` on other methods.",
            (
                _row("fedrecgel"),
                *(_row("fedrecgel", **{radius: 0.0}) for radius in ("rho_shared", "rho_private")),
                _row("fedrecgel", rho_shared=0.0, rho_private=0.0),
                *(row for method in ("fedmf", "fedncf", "pfedrec") for row in (_row(method), _row(method, "sam"))),
                _row("fedrap"),
                *CONTROLS,
            ),
            ("filmtrust", "lastfm-2k", "amazon-video", "ml-100k"),
            (
                ("fedrecgel", "fedrecgel rho_shared=0.0 rho_private=0.0"),
                ("fedrecgel", "fedncf"),
                ("fedrecgel", "popularity"),
                *((f"{method}+sam", method) for method in ("fedmf", "fedncf", "pfedrec")),
            ),
        ),
    )
}


def grid(name: str) -> Grid:
    """The grid of that name."""
    if name not in GRIDS:
        raise UserError(f"unknown table '{name}'{did_you_mean(str(name), (*GRIDS, 'summary'))}")
    return GRIDS[name]
