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


def advert(folder: DeviceFolder, run: str) -> bytes:
    """Keys for the node's next sum in a run: new ones where the last were used. Nothing before it was admitted."""
    identity = folder.identity
    if not identity.certificate:
        return b""
    if (kept := folder.ledger.session("next")) is not None:
        party = Party.load(kept, identity)
        if party.run == run:
            return party.advert
    party = Party.begin(identity, run)
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
    if party.run != order.run:
        raise UserError(f"this sum belongs to run '{party.run}'")
    version = folder.catalogue.version
    return Reply(order.run, order.round, version, 0, advert=advert(folder, order.run), sealed=sealed)


def masked(order: Order, folder: DeviceFolder, values: NDArray[np.int64]) -> tuple[bytes, bytes]:
    """What leaves of a vector in the sum that goes on, and the node's part in it, to be kept."""
    party = _party(folder, "now")
    return party.mask(values, order.sealed, bytes.fromhex(order.digest)), party.dump()


def _party(folder: DeviceFolder, name: str) -> Party:
    kept = folder.ledger.session(name)
    if kept is None:
        raise UserError("the server asks for a leg of a secure sum that this device has no part in")
    return Party.load(kept, folder.identity)
