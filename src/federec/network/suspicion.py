"""Which replies are not believed, though they are well formed: those far from the usual, and sums that someone spoils.

A secure sum shows no single reply. Where a sum cannot be one of honest replies, one of its nodes has spoiled it, and
the next sums are taken over smaller groups, drawn anew each time: whoever is part of a good sum is cleared, and who is
part of spoiled ones time after time is skipped.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from statistics import median

import numpy as np

from federec.network.guard import Rejection
from federec.network.messages import Reply

FAR = 16.0
"""Times the usual norm of an update for one user, beyond which it is refused."""
STRIKES = 3
"""Spoiled sums in a row after which a node is skipped."""
_MOST_GROUPS = 8


class Norms:
    """The usual norm of an update, for each user in it."""

    def __init__(self) -> None:
        self.usual = 0.0
        """Of the last round; 0 before the first."""

    def far(self, replies: Mapping[int, Reply]) -> dict[int, Rejection]:
        """What is far beyond the usual norm: that of the last round, or before there was one, of these replies."""
        norms = {node: norm(reply) / max(1, reply.devices) for node, reply in replies.items()}
        usual = self.usual or (median(norms.values()) if len(norms) > 2 else 0.0)
        wrong = {node for node, value in norms.items() if value > FAR * usual > 0}
        if good := [value for node, value in norms.items() if node not in wrong]:
            self.usual = median(good)
        return {
            node: Rejection("norm", f"its norm is {norms[node]:.4g} for each user, the usual one {usual:.4g}")
            for node in wrong
        }


class Suspects:
    """Nodes that were part of spoiled sums."""

    def __init__(self, smallest: int) -> None:
        self.smallest = smallest
        """Fewest nodes of a sum."""
        self.strikes: dict[int, int] = {}
        self._draw = random.SystemRandom()  # nobody can arrange to be among honest nodes

    def groups(self, nodes: list[int]) -> list[list[int]]:
        """The nodes of each sum: all together while nobody is suspected; otherwise drawn at random."""
        if not any(node in self.strikes for node in nodes):
            return [nodes]
        shuffled = self._draw.sample(nodes, len(nodes))
        count = min(_MOST_GROUPS, len(nodes) // self.smallest)
        if count < 2:  # then those that were part of spoiled sums most often are left out
            return [sorted(shuffled, key=lambda node: self.strikes.get(node, 0))[: self.smallest]]
        return [shuffled[start::count] for start in range(count)]

    def saw(self, nodes: Iterable[int], spoiled: bool) -> None:
        """A sum over these nodes was spoiled, or was not."""
        for node in nodes:
            if spoiled:
                self.strikes[node] = self.strikes.get(node, 0) + 1
            else:
                self.strikes.pop(node, None)

    def caught(self) -> list[int]:
        """Nodes that are to be skipped; each is named once."""
        found = [node for node, strikes in self.strikes.items() if strikes >= STRIKES]
        for node in found:
            self.strikes[node] = STRIKES - 1
        return found


def norm(reply: Reply) -> float:
    """Of all values of an update."""
    values = (*reply.update.rows.values(), *reply.update.layers.values())
    return math.sqrt(sum(float(np.square(value, dtype=np.float64).sum()) for value in values))
