"""The line between devices and their server: a channel of stages, and an aggregator.

    device                                  server
    update -> stage 1 -> ... -> stage n  =>  aggregator -> stages' server halves -> new shared parameters

Simulation with both engines, torchrun and every network pass updates through the same two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from federec.aggregators.base import Aggregator, AggregatorSettings
from federec.aggregators.mean import Mean
from federec.aggregators.registry import parse_aggregator
from federec.aggregators.sum import Sum
from federec.cohort.layers import USERS, Param, Params
from federec.cohort.update import Update
from federec.errors import UserError
from federec.lazy import torch
from federec.methods.base import DeviceMethod
from federec.methods.forms import Form
from federec.stages.base import Format, Promise, Settling, Stage
from federec.stages.central_noise import CentralNoise
from federec.stages.distributed_noise import DistributedNoise
from federec.stages.randomness import Randomness

if TYPE_CHECKING:
    from torch import Tensor

    from federec.attackers.base import Attack


@dataclass(frozen=True)
class Channel:
    """What happens to an update on its way."""

    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        for index, stage in enumerate(self.stages):
            if stage.name in names[:index]:
                raise UserError(f"stage '{stage.name}' is given twice; a channel has each stage once")
            if stage.per_user and any(not before.per_user for before in self.stages[:index]):
                raise UserError(f"stage '{stage.name}' works on single users; put it before '{names[index - 1]}'")
        if "secure-sum" in names[:-1]:
            raise UserError(f"nothing can be done to masked values; put '{names[-1]}' before 'secure-sum'")
        known, bound, rounding = Promise(), list[Stage](), self.promise.rounding
        for stage in self.stages:
            bound.append(stage.bound(known._replace(rounding=rounding)))
            known = bound[-1].promise(known)
        object.__setattr__(self, "stages", tuple(bound))

    @property
    def per_user(self) -> Channel:
        """The stages that work on every single user's update."""
        return Channel(tuple(stage for stage in self.stages if stage.per_user))

    @property
    def per_sender(self) -> Channel:
        """The stages that work on what a device or hub sends."""
        return Channel(tuple(stage for stage in self.stages if not stage.per_user))

    def __contains__(self, name: str) -> bool:
        return any(stage.name == name for stage in self.stages)

    def device(self, update: Update, random: Randomness) -> tuple[Update, Tensor]:
        """The devices' half: what they send, and how many rows each has fetched for it."""
        fetched = update.counts
        for stage in self.stages if update.rows or update.layers else ():
            update = stage.device(update, random)
            fetched = torch.maximum(fetched, update.counts)
        return update, fetched

    @property
    def fetches_all(self) -> bool:
        """Whether devices fetch the rows of all items."""
        return any(stage.fetches_all for stage in self.stages)

    def server(self, total: Params, settling: Settling) -> Params:
        """The server's half, in the opposite order."""
        sends = [settling.sends]
        for stage in self.stages[:-1]:
            sends.append(stage.sends(sends[-1], settling.n_items))
        for stage, before in zip(reversed(self.stages), reversed(sends), strict=bool(self.stages)):
            total = stage.server(total, settling._replace(sends=before))
        return total

    def sends(self, known: Mapping[str, Param], n_items: int) -> Mapping[str, Param]:
        """What updates consist of after all stages."""
        return reduce(lambda known, stage: stage.sends(known, n_items), self.stages, known)

    def now(self, memory: Params) -> Channel:
        """The channel as it is in this round, after what the server has kept of earlier ones."""
        stages = tuple(stage.now(memory) for stage in self.stages)
        return self if stages == self.stages else Channel(stages)

    @property
    def format(self) -> Format:
        """How an update is written after all stages."""
        return reduce(lambda known, stage: stage.format(known), self.stages, Format())

    @property
    def promise(self) -> Promise:
        """What is promised about an update after all stages."""
        return reduce(lambda known, stage: stage.promise(known), self.stages, Promise())

    def fuse(self, form: Form) -> Form | str:
        """The form whose kernel does these stages' work as well; or why there is none."""
        widened = ""
        for stage in self.stages:
            if stage.on_sums:
                widened = stage.name if stage.adds_rows else widened
                continue
            settings: dict[str, Any] = dict(stage.in_kernel())
            known = {field.name for field in fields(form)}
            if not settings or not settings.keys() <= known:
                return f"stage '{stage.name}' works on single updates, and kernels only give their sum"
            if widened:
                return f"a kernel cannot apply '{stage.name}' to the rows that '{widened}' adds"
            form = replace(form, **settings)
        return form


@dataclass(frozen=True)
class Link:
    """What lies between the devices of a run and its server."""

    channel: Channel = Channel()
    aggregator: type[Aggregator] = Mean
    settings: AggregatorSettings | None = None
    """Of the aggregator; the default ones if not given."""
    attack: Attack | None = None
    """What some of the simulated devices do instead of learning honestly."""
    divisor: int | None = None
    """Devices that a mean divides by, where that must not depend on who took part; None: those that took part."""

    @staticmethod
    def of(
        method: DeviceMethod,
        stages: Sequence[Stage] = (),
        aggregator: str | None = None,
        attack: Attack | None = None,
    ) -> Link:
        """The link of a method: the stages that it brings itself, and these. Stages here that work on single users come
        before the method's own. What does not go together is refused."""
        kind, settings = parse_aggregator(aggregator or (Sum if method.sums else Mean).name)
        first = list(takewhile(lambda stage: stage.per_user, stages))
        link = Link(Channel((*first, *method.stages(), *stages[len(first) :])), kind, settings, attack)
        if method.sums and kind is not Sum:
            raise UserError(f"the server of '{method.name}' needs the sum; aggregator '{kind.name}' does not give it")
        opens = "" if kind.linear else f"aggregator '{kind.name}'"
        opens = f"the server of '{method.name}'" if method.opens_updates else opens
        if opens and "secure-sum" in link.channel:
            remedy = "; bound updates on the devices: --stage clip:norm=1" if kind.gathers else ""
            raise UserError(f"{opens} needs single updates, and 'secure-sum' only gives their sum{remedy}")
        if kind.gathers and method.opens_updates:
            raise UserError(f"the server of '{method.name}' sums updates itself; use the aggregator mean")
        if attack is not None:
            attack.check(method)
            if "distributed-noise" in link.channel and not attack.obeys:
                raise UserError(
                    "behind 'distributed-noise' there are no rows to forge; let attackers obey (obeys=true)"
                )
        link._check_noise(method, opens)
        return link

    @property
    def private(self) -> bool:
        """Whether noise on the sum hides every user, so that rounds are counted by an account."""
        return self.channel.promise.multiplier > 0

    def _check_noise(self, method: DeviceMethod, opens: str) -> None:
        """Refuse noise on sums where it would not hide a user. How much there is may still be open (`runs.budget`)."""
        names = [stage.name for stage in self.channel.stages]
        noise = [stage for stage in self.channel.stages if isinstance(stage, CentralNoise | DistributedNoise)]
        if not noise or noise[0].multiplier is None or (noise[0].name == "central-noise" and not noise[0].multiplier):
            return
        name = noise[0].name
        if len(noise) > 1 or {"laplace", "gaussian"} & set(names):
            raise UserError(f"'{name}' is noise enough; leave the other noise out")
        if "clip" not in names[: names.index(name)] or self.channel.promise.power != 2:
            raise UserError(
                f"'{name}' needs a bound on what one user sends; put 'clip' before it (--stage clip:norm=1)"
            )
        if "quantise" in names:
            raise UserError(f"'quantise' can make a clipped update longer than '{name}' counts on; leave it out")
        if name == "distributed-noise" and "secure-sum" not in names:
            raise UserError(f"'{name}' only hides a device among others; put 'secure-sum' behind it")
        if any(USERS in param.shape for param in method.shared().values()):
            raise UserError(f"the server of '{method.name}' keeps values of single users, which '{name}' cannot hide")
        if opens:
            raise UserError(f"{opens} works on single updates, and '{name}' only hides them in a sum")
        if name == "distributed-noise" and method.sends_parts:
            raise UserError(
                f"'{method.name}' sends other sums in other rounds; use 'central-noise' instead of '{name}'"
            )

    def begin(self, n_items: int) -> Aggregator:
        """The aggregator of a new round."""
        return self.aggregator(n_items) if self.settings is None else self.aggregator(n_items, settings=self.settings)

    def why_not_fused(self) -> str | None:
        """Why no kernel can play rounds with this link, whatever the method."""
        if not self.aggregator.linear:
            return f"aggregator '{self.aggregator.name}' needs single updates, and kernels only give their sum"
        if self.attack is not None:
            return "attackers send updates of their own, and kernels only give the sum of honest ones"
        return None
