"""Claims that one row is better than another: differences, their significance, the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from federec.reproduction.found import DECIDES, Finished, Found
from federec.reproduction.statistics import SEEDS, Difference, holm, paired_tests, verdict

Asked = tuple[str, str, str]
"""Is the row with the first label better than that with the second, on this data set?"""
HOLM = (
    "A verdict rests on NDCG@10 against all items, over users and the seeds that both rows have. It is `better` or "
    "`worse` only if p is below 0.05 after Holm's correction over {family}, and `no claim` "
    "with fewer than three common seeds. Settings are taken as given: chance in the search for them is not counted. "
    "Intervals are 95 %, paired and not corrected; the variance over seeds is at least the average of all comparisons "
    "on the data set."
)


class Claim(NamedTuple):
    """What the runs say about a question."""

    kind: str
    """The kind of the cells that were compared."""
    seeds: int
    difference: Difference
    """Of NDCG@10 against all items."""
    p: float
    """Adjusted for all claims that were decided together; 1 with too few seeds."""
    sampled: tuple[float, float]
    """By how many points HR@10 and NDCG@10 against 99 sampled items are larger."""

    @property
    def verdict(self) -> str:
        return verdict(self.difference.mean, self.p, self.seeds)

    @property
    def turned(self) -> Claim:
        """What it says of the second row and the first."""
        mean, low, high = self.difference
        hits, ndcg = self.sampled
        return self._replace(difference=Difference(-mean, -high, -low), sampled=(-hits, -ndcg))

    @property
    def points(self) -> str:
        return f"{100 * self.difference.mean:+.1f}"


def decide(
    asked: Iterable[Asked], found: Found, kinds: Sequence[str] = ("tuned", "clean"), chosen_from: int = 0
) -> dict[Asked, Claim]:
    """The questions that runs can answer, each from cells of the first of the kinds that both rows have. They are one
    family for Holm's correction, as far as they have enough seeds; with `chosen_from` they were chosen by what was
    found, from so many."""
    pairs: dict[Asked, tuple[str, Finished, Finished]] = {}
    for question in dict.fromkeys(asked):
        first, second, data = question
        for kind in kinds:
            a, b = found.get((first, data, kind)), found.get((second, data, kind))
            if question not in pairs and a and b and a.common(b):
                pairs[question] = kind, a, b
    claims: dict[Asked, Claim] = {}
    for name in dict.fromkeys(data for _, _, data in pairs):
        here = {question: pair for question, pair in pairs.items() if question[2] == name}
        tests = paired_tests([a.minus(b, *DECIDES) for _, a, b in here.values()])
        for (question, (kind, a, b)), test in zip(here.items(), tests, strict=True):
            hits, ndcg = (a.mean_minus(b, "sampled", metric) for metric in ("hr@10", "ndcg@10"))
            claims[question] = Claim(kind, test.seeds, test.difference, test.p, (hits, ndcg))
    family = [question for question, claim in claims.items() if claim.seeds >= SEEDS]
    adjusted = dict(zip(family, holm([claims[question].p for question in family], chosen_from), strict=True))
    return {question: claim._replace(p=adjusted.get(question, 1.0)) for question, claim in claims.items()}


def corrected(claims: Mapping[Asked, Claim], chosen_from: int = 0) -> str:
    """How the claims of a page were judged."""
    count = sum(claim.seeds >= SEEDS for claim in claims.values())
    family = f"all {count} comparisons of this page"
    if chosen_from > count:
        family = f"the {chosen_from} pairs of rows that could have been compared, since figures choose the best row"
    return HOLM.format(family=family)


def listed(words: Sequence[str]) -> str:
    """Words as a sentence has them: `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
