"""What a device has given to servers: the answers that left it, and what they cost. Part of its vault.

A device answers once. Whoever asks the same again gets the same bytes; whoever asks for the same round with other
parameters, or in another group, gets nothing: two sums that differ by one device would tell what that device sent.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from federec.errors import UserError

if TYPE_CHECKING:  # it needs cryptography, which counting does not
    from federec.network.vault import Vault

ANSWERS = ("train", "evaluate", "full")
"""Kinds of answers that are kept, the newest of each: to `train`, to `evaluate`, and to `evaluate` with all items."""


@dataclass(frozen=True)
class Answer:
    """What left the device in reply to an order."""

    run: str
    round: int
    digest: str
    """Of all that the order asked for."""
    content: bytes
    """The message, byte for byte."""


@dataclass(frozen=True)
class Spent:
    """What the device has given in all runs."""

    rounds: int = 0
    """Of training."""
    rho: float = 0.0
    """Used up by noise, see `policy`."""
    runs: tuple[str, ...] = ()
    """Those it has answered, the newest last. Runs that another one has followed never come back."""


class Ledger:
    """The part of a vault that keeps count. What is kept, is kept within a change of the vault."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    @property
    def spent(self) -> Spent:
        """What it has given so far."""
        value = self._vault.get("spent")
        return Spent() if value is None else Spent(**json.loads(value) | {"runs": tuple(json.loads(value)["runs"])})

    def answered(self, kind: str, run: str, round_: int, digest: str) -> bytes | None:
        """The message with which an order was answered already, None where it was not. A UserError where another
        answer would have to be given than before."""
        if run in self.spent.runs[:-1]:
            raise UserError(f"run '{run}' has ended here; a device does not go back to it")
        old = self._answer(kind)
        if old is None or old.run != run or (old.round < round_ and kind != "full"):  # full: once in a run
            return None
        if (old.round, old.digest) == (round_, digest):
            return old.content
        raise UserError(f"round {round_} of run '{run}' was answered already ({kind}); a device answers once")

    def keep(self, kind: str, answer: Answer, rho: float = 0.0) -> None:
        """Keep what is about to leave."""
        spent = self.spent
        if answer.run not in spent.runs:
            spent = replace(spent, runs=(*spent.runs, answer.run))
            for name in ANSWERS:
                self._vault.delete(f"answer {name}")
        if kind == "train":
            spent = replace(spent, rounds=spent.rounds + 1, rho=spent.rho + rho)
        header = json.dumps({"run": answer.run, "round": answer.round, "digest": answer.digest})
        self._vault.put(f"answer {kind}", header.encode() + b"\n" + answer.content)
        self._vault.put("spent", json.dumps(asdict(spent)).encode())

    def _answer(self, kind: str) -> Answer | None:
        value = self._vault.get(f"answer {kind}")
        if value is None:
            return None
        header, _, content = value.partition(b"\n")
        return Answer(**json.loads(header), content=content)
