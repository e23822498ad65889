"""What may leave a device, decided where the data is. The device keeps its policy in its vault; orders that ask for
less protection are refused, whoever gives them.

Three ways are open:

* *hidden*: only as part of a secure sum over a cohort of certified nodes. The default. Under `distributed-noise` the
  sum costs some of the budget, too: the device counts on the noise of two thirds of its smallest cohort, whoever else
  drops out or lies.
* *noise*: in the clear, clipped, whole tables under Gaussian noise, up to a budget. One message is a Gaussian mechanism
  whose inputs differ by at most 2 clip, so with standard deviation s it has rho = 2 (clip / s)^2 of zero-concentrated
  differential privacy; rho adds up over messages, and epsilon = rho + 2 sqrt(rho ln(1 / delta)) (Bun and Steinke 2016).
* *clear*: as it is. For hubs, among whose many users one is hidden, and for devices whose owner has said so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import PositiveFloat, PositiveInt, ValidationError, field_validator

from federec.cohort.layers import Param
from federec.errors import UserError, first_fault
from federec.federation.channel import Channel
from federec.federation.costs import skellam_cost, whole_tables
from federec.methods.base import DeviceMethod
from federec.methods.references import Reference
from federec.network.ledger import Spent
from federec.privacy.cost import DELTA as DELTA
from federec.privacy.cost import Skellam
from federec.runs.config import RunConfig
from federec.settings import Settings
from federec.stages.base import Promise
from federec.stages.distributed_noise import NOISED, DistributedNoise
from federec.stages.registry import plain, stage
from federec.stages.secure_sum import SecureSum

HUB = 100
"""Users from which on a node is a hub, which may send in the clear. A sum over its users is then of the size that a
secure sum should have at least; below, single users' items show in it."""
COHORT = 10
"""Nodes that a secure sum needs at least, unless a device says otherwise: large enough that leaving out a third, which
may drop out or be the server's own, leaves a handful of strangers; small enough for a pilot."""
SECURE = (plain(SecureSum()),)
"""The channel of a federation that names none."""


def smallest_cohort(nodes: int) -> int:
    """The cohort for a federation of so many nodes that are all known: a third of them may be away."""
    return min(COHORT, max(2, nodes - nodes // 3))


def check_secure(method: DeviceMethod, channel: Channel) -> None:
    """Refuse to let messages travel as they are where a single one tells which items its users have: those of servers
    that need sums. Servers check before a run, and every node for itself before it sends anything."""
    if method.sums and "secure-sum" not in channel:
        reason = "what one node sends tells which items its users have"
        raise UserError(f"'{method.name}' needs secure aggregation, since {reason}; add --stage secure-sum")


class Policy(Settings):
    """What a device does for a server, and what it never does."""

    method: Reference = "pfedrec"
    """The method that it runs."""
    plugins: tuple[Reference, ...] = ()
    """The plug-ins on it."""
    channel: tuple[dict[str, Any], ...] | None = None
    """The least that must happen to what it sends; None: `secure-sum`, unless it may send in the clear or under
    noise."""
    cohort: PositiveInt = COHORT
    """Fewest certified nodes in a secure sum, this one among them."""
    rounds: PositiveInt = 1000
    """Rounds of training in which it takes part at most, over all runs."""
    runs: PositiveInt = 1
    """Runs in which it takes part at most. Another run begins where this one began: a server that leaves out one device
    in it could tell from the difference of two sums what that device sent."""
    budget: PositiveFloat | None = None
    """Epsilon that may be used up in all, by noise in the clear or by distributed noise in secure sums."""
    clear: bool = False
    """Whether the server may read this device's own update, which tells what its users like."""

    @field_validator("channel")
    @classmethod
    def _known_stages(cls, stages: tuple[dict[str, Any], ...] | None) -> tuple[dict[str, Any], ...] | None:
        return None if stages is None else tuple(plain(stage(values)) for values in stages)

    @staticmethod
    def checked(**values: Any) -> Policy:
        """From plain values, with the first fault in one line."""
        try:
            return Policy(**values)
        except ValidationError as error:
            raise UserError(": ".join(first_fault(error))) from None

    @staticmethod
    def of(config: RunConfig, cohort: int) -> Policy:
        """That a run needs: for devices that are made for it, on the machine where it is served."""
        channel = config.channel or ()
        hidden = any(values.get("stage") == SecureSum.name for values in channel)
        return Policy(
            method=config.method,
            plugins=config.plugins,
            channel=channel,
            cohort=cohort,
            rounds=max(Policy.model_fields["rounds"].default, config.rounds or 0),
            clear=not hidden,
        )

    def promise(self, users: int) -> Promise:
        """The least that must be promised about what leaves a device of so many users."""
        open_ = self.open(users) or self.budget is not None
        stages = self.channel if self.channel is not None else () if open_ else SECURE
        return Channel(tuple(stage(values) for values in stages)).promise

    def open(self, users: int) -> bool:
        """Whether a device of so many users may send in the clear, losses and metrics too."""
        return self.clear or users >= HUB

    def allow(
        self,
        config: RunConfig,
        channel: Channel,
        run: str,
        round_: int,
        users: int,
        spent: Spent,
        cost: float | None = None,
    ) -> None:
        """A UserError where an order asks for more than the device gives. `channel` is that of the order, `users` are
        those of the device, `spent` is what it has given so far, `cost` what a message costs, see `rho`."""
        asked, pinned = (config.method, config.plugins), (self.method, self.plugins)
        if asked != pinned:
            raise UserError(
                f"the server asks for {'+'.join((asked[0], *asked[1]))}; this device runs {self.named()} "
                "(federec device policy --method)"
            )
        if round_ > self.rounds or spent.rounds > self.rounds:
            raise UserError(f"this device takes part in {self.rounds} rounds (federec device policy --rounds)")
        if run not in spent.runs and len(spent.runs) >= self.runs:
            raise UserError(f"this device takes part in {self.runs} run(s) (federec device policy --runs)")
        if why := weaker(channel.promise, self.promise(users)):
            raise UserError(f"the server asks for a channel {why} (federec device policy --stage)")
        if channel.promise.hidden and cost and self.budget is not None and epsilon(spent.rho + cost) > self.budget:
            raise UserError(
                f"this device's privacy budget, epsilon {self.budget:g}, is used up (federec device policy)"
            )
        if not self.may_send(channel, users, spent.rho):
            raise UserError(
                "the server asks for this device's own update, from which it can work out what the user likes; the "
                "device sends only as part of a secure sum (federec device policy --show-server-what-i-like)"
            )

    def may_send(self, channel: Channel, users: int, spent: float) -> bool:
        """Whether what leaves through a channel is protected as the policy wants."""
        if channel.promise.hidden or self.open(users):
            return True
        more = rho(channel)
        return self.budget is not None and more is not None and epsilon(spent + more) <= self.budget

    def named(self) -> str:
        return "+".join((self.method, *self.plugins))

    def words(self, users: int) -> list[str]:
        """What a server can make the device do, in sentences."""
        runs = "one run" if self.runs == 1 else f"{self.runs:,} runs"
        told = [
            f"It runs {self.named()}, which is installed here, in {runs} and at most {self.rounds:,} rounds. It never "
            "runs code that a server sends."
        ]
        promise = self.promise(users)
        if not promise.hidden and self.open(users):
            who = "its owner allows it" if self.clear else f"it hosts {users:,} users, who hide among each other"
            told.append(f"The server may read this device's own updates, and so what its users like: {who}.")
        elif self.budget is None:
            told.append(
                f"What it learned leaves only as part of a sum over at least {self.cohort} certified devices. The "
                "server can read the sum, and nothing of this device."
            )
        if self.budget is not None:
            told.append(
                f"The server may read its updates under noise, or sums of them under distributed noise, until epsilon "
                f"{self.budget:g} (delta {DELTA:g}) is used up."
            )
        if promise.clip or promise.noise:
            limits = [f"is clipped to norm {promise.clip:g}"] if promise.clip else []
            limits += [f"carries {promise.noise} noise of scale {promise.scale:g} or more"] if promise.noise else []
            told.append(f"Every update {' and '.join(limits)}.")
        told.append(
            "The server also learns that the device is there, when it answers, and how many users it was admitted for."
        )
        return told


def weaker(asked: Promise, pinned: Promise) -> str:
    """In what a channel promises less than was pinned; empty where it does not."""
    if pinned.hidden and not asked.hidden:
        return "without secure-sum"
    if pinned.clip is not None and (asked.clip is None or (asked.clip > pinned.clip and not pinned.follows)):
        return f"that does not clip to {pinned.clip:g}"
    if pinned.noise and (asked.noise != pinned.noise or asked.scale < pinned.scale):
        return f"without {pinned.noise} noise of scale {pinned.scale:g}"
    return ""


def rho(channel: Channel, sends: Mapping[str, Param] | None = None, cohort: int = COHORT) -> float | None:
    """What one message through a channel costs; None where its noise bounds nothing: not on all rows, or without
    clipping. `sends` is what the message consists of, `cohort` the fewest nodes of a secure sum."""
    promise = channel.promise
    if promise.noise == "distributed" and sends is not None and NOISED in sends:
        return _distributed(channel, sends[NOISED].shape[0], cohort)
    if promise.noise != "gaussian" or promise.clip is None or promise.power != 2 or not whole_tables(channel):
        return None
    return 2 * (promise.clip / promise.scale) ** 2


def _distributed(channel: Channel, size: int, cohort: int) -> float | None:
    """Of a secure sum with two thirds of the cohort honest: c with a c >= the Renyi divergence of every order a >= 2.
    The bound is for whole orders; an eighth more covers those in between."""
    stage = next(stage for stage in channel.stages if isinstance(stage, DistributedNoise))
    honest = cohort - cohort // 3
    cost = skellam_cost(stage, size, min(1.0, honest / stage.counted))
    if not isinstance(cost, Skellam):
        return None
    square, l1, v = cost.l2**2, cost.l1, cost.variance
    return 1.125 * (square / (2 * v) + min(square / (2 * v * v) + 0.75 * l1 / (v * v), 0.75 * l1 / v))


def epsilon(rho: float, delta: float = DELTA) -> float:
    """Of differential privacy, from that of zero-concentrated differential privacy."""
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))
