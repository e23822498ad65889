"""What happens to an update before it leaves a device: which rows it names, clipping, noise.

Noise is a pure function of (the device's secret, run, round, place): a round that has to be played again sends the same
numbers again, and nobody without the secret can take them off.
"""

from __future__ import annotations

import hashlib
import math
from typing import Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from federec import streams
from federec.errors import UserError
from federec.federation.update import Update
from federec.methods.base import DeviceMethod, Settings
from federec.network.parameters import Payload


class ChannelSettings(Settings):
    """How a federation's updates travel."""

    rows: Literal["needed", "decoys", "all"] = "needed"
    """Item rows that a device asks for and sends: those it needs, with `decoys` others beside them, or all. What a
    device needs in every round is what its users have: among many users that is nobody's, of one user it is told. The
    default is for hubs, and for catalogues too large to send whole; it hides less the fewer users a device has."""
    decoys: NonNegativeInt = 500
    """Rows that a device asks for besides, always the same ones; with rows=decoys."""
    clip: PositiveFloat | None = None
    """Largest norm of one user's update; larger ones are scaled down to it."""
    noise: Literal["none", "laplace", "gaussian"] = "none"
    """What a device adds to every value that it sends."""
    scale: NonNegativeFloat = 0.0
    """Of the noise: the Laplace distribution's scale, or the standard deviation."""
    secure: bool = False
    """Secure aggregation (SecAgg+): the server learns sums over devices and nothing of a single one."""


def check_secure(method: DeviceMethod, secure: bool) -> None:
    """Refuse to let messages travel as they are where one device's alone tells what its users have: those of servers
    that need sums. Servers look before a run, and a device for itself before it sends anything."""
    if method.sums and not secure:
        reason = "what one device sends tells which items its users have"
        raise UserError(f"'{method.name}' needs secure aggregation, since {reason}; add --network secure=true")


def rows_to_ask(channel: ChannelSettings, needed: Tensor, n_items: int, secret: bytes) -> Tensor:
    """Sorted codes of the rows to ask for; none stands for all."""
    if channel.rows == "all" or channel.secure:
        return needed[:0]
    if channel.rows == "decoys":
        # The same in every round: positives come back in each, and what changes beside them would give them away.
        others = torch.randperm(n_items, generator=torch.Generator().manual_seed(int.from_bytes(secret[:7])))[
            : channel.decoys
        ]
        needed = torch.cat([needed, others]).unique()
    return needed


def clipped(update: Update, most: float | None) -> Update:
    """Each device's whole update scaled down to a norm of at most `most`."""
    if most is None:
        return update
    owner, square = update.owner, torch.zeros(len(update))
    for rows in update.rows.values():
        square.index_add_(0, owner, rows.square().sum(1))
    for layer in update.layers.values():
        square += layer.flatten(1).square().sum(1)
    factor = (most / square.sqrt()).clamp(max=1.0)
    return Update(
        update.ids,
        update.counts,
        {name: value * factor[owner, None] for name, value in update.rows.items()},
        {name: value * factor.view(-1, *[1] * (value.dim() - 1)) for name, value in update.layers.items()},
    )


def noisy(update: Payload, channel: ChannelSettings, secret: bytes, run: str, round_: int) -> Payload:
    """With noise on every value."""
    if channel.noise == "none" or not channel.scale:
        return update
    seed = int.from_bytes(hashlib.sha256(secret + run.encode()).digest()[:8])
    key = streams.keys(seed, round_, torch.zeros(1, dtype=torch.int64))
    draw = streams.LAPLACE

    def with_noise(value: Tensor) -> Tensor:
        nonlocal draw
        place = draw + 2 * torch.arange(value.numel())
        draw += 2 * value.numel()
        random = streams.bits(key, place)
        noise = _laplace(random) if channel.noise == "laplace" else _gaussian(random, streams.bits(key, place + 1))
        return value + channel.scale * noise.view_as(value)

    rows = {name: with_noise(value) for name, value in update.rows.items()}
    return Payload(update.ids, rows, {name: with_noise(value) for name, value in update.layers.items()})


def _laplace(random: Tensor) -> Tensor:
    """Laplace(0, 1) from 64 random bits: an exponential number from the upper, its sign from the lowest."""
    return -torch.log1p(-streams.unit(random).float()) * (1.0 - 2.0 * (random & 1))


def _gaussian(first: Tensor, second: Tensor) -> Tensor:
    """N(0, 1) from two times 64 random bits (Box and Muller)."""
    radius = (-2 * torch.log1p(-streams.unit(first).double())).sqrt()
    return (radius * torch.cos(2 * math.pi * streams.unit(second))).float()
