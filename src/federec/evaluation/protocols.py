"""Protocols: how training negatives are drawn and which round counts. Named in every result.

`clean`  negatives are drawn outside the device's *training* items; held-out items are as unknown to training as
         any other.
`paper`  negatives never include the device's validation and test items either, as in the published code of
         PFedRec, FedRAP and their descendants. That leaks the answer: every other item is pushed down sooner or
         later, the held-out ones never.

`clean` chooses the round by validation NDCG@10 against all items, `paper` by HR@10 against 99 sampled ones, as the
authors do. Among equals the earliest round counts (`runs/best.py`).

`clean` orders a user's interactions of equal times at random, `paper` as in the file: files are often sorted in a way
that tells what came next, and a device cannot know that.
"""

from __future__ import annotations

from dataclasses import dataclass

from federec.data.split import Ties
from federec.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Protocol:
    name: str
    close_held_out: bool
    """Never draw validation and test items as training negatives."""
    select: str
    """The validation metric that picks the round."""
    ties: Ties
    """The order of a user's interactions with equal times."""


PROTOCOLS = {
    p.name: p
    for p in (
        Protocol("clean", close_held_out=False, select="full.ndcg@10", ties="random"),
        Protocol("paper", close_held_out=True, select="sampled.hr@10", ties="file"),
    )
}


def protocol(name: str) -> Protocol:
    """The protocol of that name."""
    if name not in PROTOCOLS:
        raise UserError(f"unknown protocol '{name}'{did_you_mean(name, PROTOCOLS)}")
    return PROTOCOLS[name]
