"""A node's part in secure sums: keys that it gives in advance, and the legs of a sum that goes on.

What is secret in a sum is only in memory: a node whose process ends has dropped out of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from federec.errors import UserError
from federec.network.device_folder import DeviceFolder
from federec.network.messages import Order, Reply
from federec.network.secure_sum import Party

LEGS = ("share", "agree", "unmask")
"""Kinds of orders that are legs of a sum, besides the one that it is about."""


@dataclass
class Sums:
    """The secure sums in which the process of a node takes part."""

    next: Party | None = None
    """For which it has given keys."""
    now: Party | None = None
    """Which goes on."""

    def advert(self, order: Order, folder: DeviceFolder) -> bytes:
        """Keys for the sum that may follow an order. They are bound to its name: for another sum nobody accepts them.
        Nothing before the node was admitted."""
        identity, name = folder.identity, f"{order.run}, {order.next}"
        if not identity.certificate or not order.next:
            return b""
        if self.next is None or self.next.run != name:
            self.next = Party.begin(identity, name)
        return self.next.advert

    def leg(self, order: Order, folder: DeviceFolder) -> Reply:
        """Take part in a leg of a sum. What is refused changes nothing."""
        if order.kind == "share":
            party = _copy(self.next)
            sealed = party.share(order.sealed, folder.root, folder.policy.cohort)
            self.now, self.next = party, None
        elif order.kind == "agree":
            party = _copy(self.now)
            sealed = party.agree(order.sealed)
            self.now = party
        else:
            sealed = _copy(self.now).unmask(order.sealed)
            self.now = None
        return Reply(order.run, order.round, folder.catalogue.version, 0, sealed=sealed)

    def masked(self, order: Order, values: NDArray[np.int64]) -> bytes:
        """What leaves of a vector in the sum that goes on."""
        party = _copy(self.now)
        sealed = party.mask(values, order.sealed, bytes.fromhex(order.digest))
        self.now = party
        return sealed


def _copy(party: Party | None) -> Party:
    if party is None:
        raise UserError("the server asks for a leg of a secure sum that this device has no part in")
    return replace(party)
