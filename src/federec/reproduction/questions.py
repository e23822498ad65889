"""The questions of the summary, and the pairs of rows that answer them."""

from __future__ import annotations

from typing import NamedTuple

Pairs = tuple[tuple[str, str], ...]


class Question(NamedTuple):
    """Does an idea help? Pairs of row labels answer: is the first better than the second?"""

    idea: str
    pairs: Pairs
    """The idea against the same without it: these decide, and the sentence on the question tells most of the first."""
    others: Pairs = ()
    """Pairs that only the table has: against other methods."""
    told: Pairs = ()
    """Pairs of which the sentence also tells."""

    @property
    def all_pairs(self) -> Pairs:
        return (*self.pairs, *self.told, *self.others)


QUESTIONS = (
    Question(
        "dual personalisation",
        (("pfedrec", "fedmf"), *((f"{method}+dualper", method) for method in ("fedmf", "fedncf", "fedrecon"))),
        tuple(("pfedrec", other) for other in ("ease", "ials", "popularity")),
    ),
    Question(
        "additive personalisation",
        (("fedrap", "fedmf"),),
        tuple(("fedrap", other) for other in ("pfedrec", "ease", "ials", "popularity")),
    ),
    Question(
        "sharpness-aware minimisation",
        (
            ("fedrecgel", "fedrecgel rho_shared=0.0 rho_private=0.0"),
            *((f"{method}+sam", method) for method in ("fedmf", "fedncf", "pfedrec")),
        ),
        tuple(("fedrecgel", other) for other in ("fedmf", "ease", "popularity")),
    ),
    Question(
        "PLGC (local-global collaboration)",
        tuple((f"{method}+plgc", method) for method in ("fedmf", "fedncf", "pfedrec", "fedrap")),
    ),
    Question(
        "order",
        (("fednext", "ease"),),
        (("fednext", "ials"), ("fednext", "fedease"), ("fedsasrec", "sasrec")),
        (("fedsasrec", "fednext"),),
    ),
    Question(
        "a closed form from sums over devices",
        (("fedease", "fedmf"), ("fedals", "fedmf")),
        (("fedease", "ials"), ("fedease", "ease")),
    ),
    Question("recency in training", (("fedmf+recency", "fedmf"), ("pfedrec+recency", "pfedrec"))),
)
