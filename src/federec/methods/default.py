"""The method for people who name none: what ranked best among all items under `clean`, at a cost that fits.

FedEASE had the best validation NDCG@10 against all items of the federated methods on every data set that was measured
with up to 10,000 items (docs/methods.md has the figures). It keeps a number for each pair of items, so for larger
catalogues FedALS is taken, the best of those that do not.
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
    best = "the best federated ranking under clean"
    if data.n_items > MOST_ITEMS:
        return Default("fedals", {}, f"closed form; {best} on catalogues of more than {MOST_ITEMS:,} items")
    settings = {} if data.times is None else dict(TRIALS)
    return Default("fedease", settings, f"closed form, one upload; {best} on catalogues of up to {MOST_ITEMS:,} items")
