"""A node's part in secure sums: keys that it gives in advance, and the legs of a sum that goes on.

What is secret in a sum is kept in the device's vault between its legs, since a process may end at any time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from federec.errors import UserError
from federec.network.device_folder import DeviceFolder
from federec.network.messages import Order, Reply
from federec.network.secure_sum import Party

LEGS = ("share", "agree", "unmask")
"""Kinds of orders that are legs of a sum, besides the one that it is about."""


def advert(order: Order, folder: DeviceFolder) -> bytes:
    """Keys for the sum that may follow an order. They are bound to its name: for another sum nobody accepts them.
    Nothing before the node was admitted."""
    identity, name = folder.identity, f"{order.run}, {order.next}"
    if not identity.certificate or not order.next:
        return b""
    if (kept := folder.ledger.session("next")) is not None:
        party = Party.load(kept, identity)
        if party.run == name:
            return party.advert
    party = Party.begin(identity, name)
    with folder.change():
        folder.ledger.keep_session("next", party.dump())
    return party.advert


def leg(order: Order, folder: DeviceFolder) -> Reply:
    """Take part in a leg of a sum."""
    if order.kind == "share":
        party = _party(folder, "next")
        sealed = party.share(order.sealed, folder.root, folder.policy.cohort)
        with folder.change():
            folder.ledger.keep_session("next", None)
            folder.ledger.keep_session("now", party.dump())
    else:
        party = _party(folder, "now")
        sealed = party.agree(order.sealed) if order.kind == "agree" else party.unmask(order.sealed)
        with folder.change():
            folder.ledger.keep_session("now", party.dump() if order.kind == "agree" else None)
    return Reply(order.run, order.round, folder.catalogue.version, 0, sealed=sealed)


def masked(order: Order, folder: DeviceFolder, values: NDArray[np.int64]) -> tuple[bytes, bytes]:
    """What leaves of a vector in the sum that goes on, and the node's part in it, to be kept."""
    party = _party(folder, "now")
    return party.mask(values, order.sealed, bytes.fromhex(order.digest)), party.dump()


def _party(folder: DeviceFolder, name: str) -> Party:
    kept = folder.ledger.session(name)
    if kept is None:
        raise UserError("the server asks for a leg of a secure sum that this device has no part in")
    return Party.load(kept, folder.identity)
