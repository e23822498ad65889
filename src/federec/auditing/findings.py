"""What an audit found: a verdict in plain words, a table of attacks, and epsilon against the promised one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from federec.auditing.canaries import Empirical
from federec.auditing.measures import Interval, Measured
from federec.auditing.promise import Promised
from federec.reporting.frames import Frame, frame
from federec.reporting.labels import method_name

LEAK = 0.55
"""An AUC up to this counts as none: the attack knows no more than popularity."""
GUESS = "popularity"
"""The attack that looks at nothing."""


NOTE = (
    "with 95 % intervals. AUC of a user's items against those of other users (mates), and against items of equal "
    "popularity (popular). The attack 'popularity' looks at nothing."
)
"""What the columns of the table are."""


class Finding(NamedTuple):
    """One attack on one kind of view."""

    attack: str
    sees: str
    measured: Measured


@dataclass(frozen=True)
class Audit:
    """What a curious server learns from a run, as `fr.audit` gives it. It prints as a verdict and a table.

    >>> found = fr.audit(run, users=10, attacks=["direction"])
    >>> [each.attack for each in found.findings][:2]
    ['popularity', 'direction']
    """

    result: dict[str, Any]
    """Of the run."""
    channel: str
    """What its server sees, in plain words."""
    users: int
    """How many users were attacked."""
    findings: list[Finding]
    promised: Promised
    empirical: Empirical | None
    """What canaries say; None where there were none."""

    @property
    def best(self) -> Finding:
        """The attack with the largest AUC; of several as good, the one that names items best."""
        attacks = [each for each in self.findings if each.attack != GUESS]
        return max(attacks or self.findings, key=lambda each: (round(each.measured.auc.mean, 3), _named(each)))

    @property
    def leaks(self) -> bool:
        """Whether an attack tells a user's items from those of other users."""
        return self.best.measured.auc.mean > LEAK

    @property
    def kept(self) -> bool | None:
        """Whether the promised epsilon holds against the canaries; None where nothing is promised or tried."""
        if self.promised.epsilon is None or self.empirical is None:
            return None
        return max(self.empirical.least, self.empirical.fit.low) <= self.promised.epsilon

    def verdicts(self) -> list[str]:
        """What was found, one sentence each.

        >>> fr.audit(run, users=10, attacks=["direction"]).verdicts()[0].startswith("The server sees")
        True
        """
        return [self._items(), *self._epsilon()]

    def _items(self) -> str:
        best = self.best
        precision, recall, auc, _ = (each.mean for each in best.measured)
        how = f"the best attack ({best.attack}, {best.sees})"
        if self.leaks:
            return (
                f"The server sees {self.channel} and learns what users have: {how} names items with precision "
                f"{precision:.2f} and recall {recall:.2f}, AUC {auc:.2f}."
            )
        return (
            f"The server sees {self.channel} and cannot tell a user's items from those of other users: {how} has an "
            f"AUC of {auc:.2f}."
        )

    def _epsilon(self) -> list[str]:
        epsilon, empirical = self.promised.epsilon, self.empirical
        if epsilon is None:
            return ["No epsilon is promised."]
        says = f"Epsilon {epsilon:.2f} at delta {self.promised.delta:g} is promised"
        if empirical is None:
            return [f"{says}; no canaries were sent."]
        shows = f"canaries show at least {empirical.least:.2f}, and {empirical.fit} if noise is normal"
        return [f"{says} and {'holds' if self.kept else 'is broken'}: {shows}."]

    def records(self) -> list[dict[str, Any]]:
        """A record for each attack: what it sees, precision, recall and AUC with 95 % intervals.

        >>> fr.audit(run, users=10, attacks=["direction"]).records()[1]["sees"]
        'one message, round 1'
        """
        return [
            {"attack": each.attack, "sees": each.sees}
            | {
                f"{name}{part}": value
                for name, values in each.measured._asdict().items()
                for part, value in zip(("", " low", " high"), values, strict=True)
            }
            for each in self.findings
        ]

    def frame(self) -> Frame:
        """The records as a frame: of pandas where that is imported, of polars otherwise.

        >>> fr.audit(run, users=10, attacks=["direction"]).frame().shape[1]
        14
        """
        records = self.records()
        return frame({key: [record[key] for record in records] for key in records[0]})

    def summary(self) -> dict[str, Any]:
        """All of it as plain values.

        >>> fr.audit(run, users=10, attacks=["direction"]).summary()["leaks"]
        True
        """
        empirical = self.empirical._asdict() if self.empirical else None
        return {
            "method": method_name(self.result),
            "data": self.result["data"]["name"],
            "channel": self.channel,
            "users": self.users,
            "verdicts": self.verdicts(),
            "leaks": self.leaks,
            "attacks": self.records(),
            "promised": self.promised._asdict(),
            "empirical": empirical,
            "kept": self.kept,
        }

    def json(self) -> str:
        """The summary as JSON; what is not known is null.

        >>> fr.audit(run, users=10, attacks=["direction"]).json()[0]
        '{'
        """
        return json.dumps(_plain(self.summary()), indent=2, ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        head = ("attack", "sees", "precision", "recall", "AUC, mates", "AUC, popular")
        lines = [head, *((each.attack, each.sees, *map(str, each.measured)) for each in self.findings)]
        widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
        table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return "\n".join([*self.verdicts(), "", *table, "", f"Over {self.users} users, {NOTE}"])


def _named(finding: Finding) -> float:
    """F1 of the named items."""
    precision, recall = finding.measured.precision.mean, finding.measured.recall.mean
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


def _plain(value: Any) -> Any:
    """Tuples as lists, NaN as None."""
    if isinstance(value, Interval):
        return {key: _plain(each) for key, each in value._asdict().items()}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and value != value else value
