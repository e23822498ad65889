"""What an attack is: what some of the simulated devices send instead of what they learned.

Attackers are compromised devices: some of the run's own users, chosen by the seed. They see what every device sees, the
shared parameters of the round, and what each of them keeps; more only where an attack says so. They act together, in
one of two ways:

    forge    they learn honestly, from interactions that they made up
    plan     they agree on a direction for item rows, and each sends it, as long as its honest update would have been

So an attacker's update has `strength` times the norm of an honest one, and a check of norms does not find it. A stage
works on the device; attackers leave the stages out, unless they run the honest program on forged data (`obeys`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from federec.cohort.draw import Devices
from federec.cohort.layers import Params
from federec.cohort.update import Update
from federec.errors import UserError
from federec.methods.base import DeviceMethod
from federec.settings import Part

Score = Callable[[Params, Tensor], Tensor]
"""Shared parameters and items [K] -> scores [C, K] of some users."""


@dataclass(frozen=True)
class Scene:
    """What the attackers of a round can look at."""

    method: DeviceMethod
    shared: Params
    """The server's parameters, as every device gets them."""
    users: Tensor
    """[A] the attackers that take part."""
    targets: Tensor
    """Items to promote."""
    devices: Devices
    """Everybody's interactions. An attack looks only at those of the attackers, and at what it says it knows."""
    score: Score
    """How the attackers score, each with its own private parameters."""
    imagine: Callable[[Devices, Tensor], Score]
    """How users would score that had learned from these interactions."""
    seed: int
    round: int

    @property
    def tables(self) -> list[str]:
        """Names of the shared item tables."""
        return [name for name, param in self.method.shared().items() if param.rows]

    @property
    def everything(self) -> Tensor:
        """Codes of all items."""
        return torch.arange(self.devices.n_items, device=self.users.device)

    def ascent(self, score: Score, goal: Callable[[Tensor], Tensor], items: Tensor) -> Params:
        """For each item table the gradient [n_items, dim] of a goal with respect to it, the goal being a sum of some
        function of the scores of `items`."""
        tables = {name: self.shared[name].detach().clone().requires_grad_() for name in self.tables}
        goal(score({**self.shared, **tables}, items)).backward()
        return {name: table.grad for name, table in tables.items() if table.grad is not None}


class Attack(Part):
    """What attackers do. Its fields are its settings."""

    name: ClassVar[str]
    paper: ClassVar[str] = ""

    fraction: Annotated[float, Field(ge=0, le=0.5)] = 0.05
    """Fraction of the devices that attack; 0: nobody does, and the exposure of the targets is measured all the same."""
    targets: PositiveInt = 1
    """How many items are promoted, and measured: drawn from the less popular half of the catalogue."""
    strength: PositiveFloat = 1.0
    """Norm of what an attacker sends, in units of the norm of what it would honestly have sent."""
    disguise: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Where attackers follow a plan: the part of its squared norm that an attacker gives to its honest update, so that
    attackers are less alike."""
    obeys: bool = False
    """Whether attackers apply the channel's stages, as devices do that run the honest program on forged data."""

    @classmethod
    def called(cls) -> str:
        return f"attack '{cls.name}'"

    def check(self, method: DeviceMethod) -> None:
        """Refuse a method that it is not defined for."""
        own = type(method).sends is not DeviceMethod.sends or type(method).message is not DeviceMethod.message
        if own or method.opens_updates or not any(param.rows for param in method.shared().values()):
            raise UserError(
                f"{self.called()} needs devices that send changes of shared item rows; '{method.name}' does not: "
                "attack fedmf, pfedrec or fedncf"
            )

    def forge(self, scene: Scene) -> Devices | None:
        """The interactions that the attackers learn from; None: their own."""
        return None

    def plan(self, scene: Scene) -> Params | None:
        """Direction of every item row [n_items, dim] by table; zero rows are not sent. None: attackers send what they
        learned."""
        return None

    def send(self, scene: Scene, plan: Params | None, update: Update, users: Tensor) -> Update:
        """What these attackers send; `update` is what they have learned."""
        if plan is None:
            return update.with_values({name: value * self.strength for name, value in update.values().items()})
        ids = torch.stack([rows.abs().sum(1) for rows in plan.values()]).sum(0).nonzero().flatten()
        length = (1 - self.disguise) ** 0.5 * self.strength * row_norms(update)
        planned = unit({name: table[ids] for name, table in plan.items()})
        sent = replace(
            update,
            ids=ids.repeat(len(update)),
            counts=torch.full_like(update.counts, len(ids)),
            rows={name: torch.cat([rows * each for each in length]) for name, rows in planned.items()},
        )
        return added(sent, update, self.disguise**0.5 * self.strength) if self.disguise else sent


def row_norms(update: Update) -> Tensor:
    """[C] norm of all item rows of each device."""
    square = next(iter(update.rows.values())).new_zeros(len(update))
    for rows in update.rows.values():
        square = square.index_add(0, update.owner, rows.square().sum(1))
    return square.sqrt()


def added(update: Update, other: Update, factor: float) -> Update:
    """The sum of two updates of the same devices, the rows of the other times a factor; the layers are those of the
    first."""
    pairs = torch.cat([each.owner * each.n_items + each.ids for each in (update, other)])
    found, place = pairs.unique(return_inverse=True)
    rows = {}
    for name, mine in update.rows.items():
        both = torch.cat([mine, other.rows[name] * factor])
        rows[name] = both.new_zeros(len(found), both.shape[1]).index_add_(0, place, both)
    owner = found.div(update.n_items, rounding_mode="floor")
    counts = torch.bincount(owner, minlength=len(update))
    return replace(update, ids=found % update.n_items, counts=counts, rows=rows)


def unit(direction: Params) -> Params:
    """The same direction with norm 1."""
    size = torch.stack([rows.square().sum() for rows in direction.values()]).sum().sqrt().clamp(min=1e-30)
    return {name: rows / size for name, rows in direction.items()}


def only(direction: Params, items: Tensor) -> Params:
    """The same direction, zero for all other items."""
    found = {name: torch.zeros_like(rows) for name, rows in direction.items()}
    for name, rows in found.items():
        rows[items] = direction[name][items]
    return found


def histories(devices: Devices, users: Tensor) -> Tensor:
    """[A, n_items] whether a user trains on an item."""
    found = torch.zeros(len(users), devices.n_items, dtype=torch.bool, device=users.device)
    history = devices.history(users)
    row = torch.arange(len(users), device=users.device)[:, None].expand_as(history.items)
    found[row[history.real], history.items[history.real]] = True
    return found


def forged(devices: Devices, users: Tensor, liked: Tensor, disliked: Tensor) -> Devices:
    """Devices of which these users like some items and draw their negatives from others, [A, n_items] each; all other
    devices are empty."""
    ptr, train = _ragged(len(devices), users, liked)
    closed_ptr, closed = _ragged(len(devices), users, ~disliked)
    place = torch.arange(len(closed), device=users.device) - torch.repeat_interleave(
        closed_ptr[:-1], closed_ptr.diff(), output_size=len(closed)
    )
    gaps = (closed - place).int()
    return Devices(devices.n_items, ptr, train, closed_ptr, gaps, ptr, train, numbers=devices.numbers)


def _ragged(devices: int, users: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Where each device's items begin [N + 1], and the items: those that are chosen [A, n_items]."""
    order = users.argsort()
    counts = torch.zeros(devices + 1, dtype=torch.int64, device=users.device)
    counts[users[order] + 1] = chosen[order].sum(1)
    return counts.cumsum(0), chosen[order].nonzero()[:, 1].int()
