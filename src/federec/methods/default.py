"""The method for people who name none: what ranked best among all items under `clean`, at a cost that fits.

On every data set that was measured with up to 10,000 items, FedEASE had the best NDCG@10 against all items on
validation of the candidates in `benchmarks/default.py`. It keeps a number for each pair of items, which larger
catalogues make too slow: there FedALS is taken, although FedEASE may rank better (on amazon-video it does). FedNext
ranks better still where times are known, but a device sends it sixteen times as much: nobody gets that unasked.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from federec.data.interactions import Interactions

MOST_ITEMS = 10_000
"""Items up to which FedEASE is taken: its server keeps 8 bytes for each pair of items, and inverts a matrix as wide."""

TRIALS = {"l2": [100.0, 300.0, 1000.0, 3000.0], "recency": [0.0, 2.0, 5.0, 10.0]}
"""FedEASE's settings where times are known: each round is one trial, validation chooses."""


class Default(NamedTuple):
    """A method for some data."""

    name: str
    settings: dict[str, Any]
    why: str
    """The reason, in a few words."""


def default_method(data: Interactions) -> Default:
    """The method for this data, its settings and the reason."""
    if data.n_items > MOST_ITEMS:
        why = f"closed form; ranks well under clean on more than {MOST_ITEMS:,} items, too many for fedease"
        return Default("fedals", {}, why)
    settings = {} if data.times is None else dict(TRIALS)
    why = f"closed form, one upload; the best federated ranking under clean where there are up to {MOST_ITEMS:,} items"
    return Default("fedease", settings, why)
