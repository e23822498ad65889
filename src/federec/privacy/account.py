"""What a run has used up of a privacy budget. The account is asked before a round, and charged before the round
begins, so that a run that is killed in a round has paid for it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from federec.errors import UserError
from federec.privacy.cost import DELTA, Accountant, Cost, accountants, epsilon, most_rounds


@dataclass(frozen=True)
class Account:
    """Costs of rounds, and how many there were."""

    cost: Cost
    """Of one round in which devices send anything."""
    delta: float = DELTA
    limit: float | None = None
    """Epsilon that must not be exceeded; None: there is no limit."""
    rounds: int = 0
    """Rounds that were charged so far."""
    last: int = 0
    """The last one of them."""

    @property
    def accountant(self) -> Accountant:
        """Who adds up: `pld`, `rdp`, or `sum`."""
        return accountants(self.cost)[0]

    @property
    def epsilon(self) -> float:
        """Used up so far."""
        return epsilon(self.cost, self.rounds, self.delta)

    @cached_property
    def most(self) -> float:
        """Rounds that the limit pays for."""
        return math.inf if self.limit is None else most_rounds(self.cost, self.limit, self.delta)

    def affords(self, round_: int, repeatable: bool) -> bool:
        """Whether a round stays within the limit. `repeatable`: a round that is played again releases the same values
        as before, so it costs nothing more."""
        return (repeatable and round_ <= self.last) or self.rounds < self.most

    def charged(self, round_: int, repeatable: bool) -> Account:
        """The account after a round."""
        if repeatable and round_ <= self.last:
            return self
        made = replace(self, rounds=self.rounds + 1, last=max(round_, self.last))
        vars(made).update({"most": self.most})  # the same, and long to compute
        return made

    def text(self) -> str:
        """What a checkpoint keeps."""
        return json.dumps({"rounds": self.rounds, "last": self.last}) + "\n"

    def read(self, text: str, path: object) -> Account:
        """The account as a checkpoint kept it."""
        try:
            kept: dict[str, Any] = json.loads(text)
            return replace(self, rounds=int(kept["rounds"]), last=int(kept["last"]))
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}: is damaged; what the run has used up is not known, start a new one") from None
