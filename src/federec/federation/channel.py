"""The line between devices and their server: a channel of stages, and an aggregator.

    device                                  server
    update -> stage 1 -> ... -> stage n  =>  aggregator -> stages' server halves -> new shared parameters

Simulation with both engines, torchrun and every network pass updates through the same two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from federec.aggregators.base import Aggregator, AggregatorSettings
from federec.aggregators.mean import Mean
from federec.aggregators.registry import parse_aggregator
from federec.aggregators.sum import Sum
from federec.attackers.base import Attack
from federec.cohort.layers import Params
from federec.cohort.update import Update
from federec.errors import UserError
from federec.methods.base import DeviceMethod
from federec.methods.forms import Form
from federec.stages.base import Format, Promise, Stage
from federec.stages.randomness import Randomness


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

    def asks(self, needed: Tensor) -> Tensor:
        """Items, ascending, whose rows a device fetches if it needs those of `needed`; empty means all."""
        for stage in self.stages:
            needed = stage.asks(needed)
            if not len(needed):
                break
        return needed

    def server(self, total: Params, devices: int) -> Params:
        """The server's half, in the opposite order."""
        return reduce(lambda total, stage: stage.server(total, devices), reversed(self.stages), total)

    @property
    def format(self) -> Format:
        """How an update is written after all stages."""
        return reduce(lambda known, stage: stage.format(known), self.stages, Format())

    @property
    def promise(self) -> Promise:
        """What is promised about an update after all stages."""
        return reduce(lambda known, stage: stage.promise(known), self.stages, Promise())

    def privacy(self) -> dict[str, Any]:
        """What `result.json` says of privacy; nothing where nothing is promised. No accountant has added up rounds, so
        there is no epsilon."""
        promise = self.promise
        if promise == Promise():
            return {}
        multiplier = promise.scale / promise.clip if promise.noise == "gaussian" and promise.clip else None
        known = {"epsilon": None, "delta": None, "accountant": None, "noise_multiplier": multiplier}
        return {"privacy": known | promise._asdict()}

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
        return link

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
