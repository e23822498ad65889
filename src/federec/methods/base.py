"""What a method is: which parameters are shared, which private, how a device scores, how it learns."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt

from federec.cohort.layers import Param, Params
from federec.errors import UserError
from federec.lazy import torch
from federec.mathematics.spectrum import effective_rank, singular_values
from federec.methods.forms import Form
from federec.settings import Part
from federec.stages.base import Stage

if TYPE_CHECKING:
    from torch import Tensor

    from federec.cohort.cohort import Cohort, Step
    from federec.cohort.draw import Devices, History, Samples
    from federec.cohort.rows import Rows

View = Literal["own", "global"]
Notes = dict[str, float | list[float]]
"""Figures of a round by name."""
LOSS = "loss"
"""Name of the loss among them."""


class Method(Part):
    """A way to recommend. Its fields are its settings, by default those of its paper; its class variables say what it
    is."""

    name: ClassVar[str]
    """What it is called in tables and folders. By default made of the name of the class: LocalOnly is `local-only`."""
    paper: ClassVar[str] = ""
    """Where it comes from."""
    default_rounds: ClassVar[int] = 100
    default_participation: ClassVar[float] = 1.0
    """Share of the devices in a round, where the run does not say."""
    reads_history: ClassVar[bool] = False
    """Whether users' histories are read when items are scored, so that a fresh one changes the ranking."""
    follow_rounds: ClassVar[tuple[str, ...]] = ()
    """Settings of which 0 stands for the number of rounds of the run."""
    plugins: ClassVar[tuple[str, ...]] = ()
    """Names of the plug-ins on it, in the order they were put on."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = hyphenated(cls.__name__)

    @classmethod
    def called(cls) -> str:
        return f"'{cls.name}'"

    def __or__(self, plugin: object) -> Method:
        """The method with a plug-in on it: `FedMF(dim=32) | SAM(rho_shared=0.05)`, or a class for the plug-in's default
        settings."""
        # The plug-in does it (`Plugin.__ror__`): methods know no plug-ins.
        if not hasattr(plugin, "plugin"):
            raise UserError(f"{plugin!r:.80} is no plug-in; put objects on a method, as in fr.FedMF() | fr.SAM()")
        return self | plugin() if isinstance(plugin, type) else NotImplemented

    def fused_form(self, n_items: int) -> Form | None:
        """The method in a form that a fused engine runs; None where it has none."""
        return None

    def item_vectors(self, model: Params) -> Tensor | None:
        """A vector for each item [n_items, width], of the server's parameters: items are similar if theirs are. None
        where it has none."""
        return None

    @property
    def most_rounds(self) -> int | None:
        """The number of rounds after which nothing changes any more; None where there is no such end."""
        return None

    def tried(self, round_: int) -> dict[str, Any]:
        """The settings that a round tries, where rounds are trials: a method with these and no others gets there in its
        first round. Empty where rounds are no trials."""
        return {}

    def for_rounds(self, rounds: int) -> Self:
        """The method as a run of so many rounds uses it: settings that follow the rounds have their number."""
        missing = [name for name in self.follow_rounds if not getattr(self, name)]
        return self.model_copy(update=dict.fromkeys(missing, rounds)) if missing else self


def hyphenated(name: str) -> str:
    """LocalOnly -> local-only."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


class DeviceMethod(Method):
    """A method trained on the devices. Subclasses say what is shared and private, and how a device scores.

    >>> class Mine(fr.DeviceMethod):
    ...     def shared(self):
    ...         return {"items": fr.item_rows(8)}
    ...     def private(self):
    ...         return {"user": fr.Param((8,))}
    ...     def score(self, p):
    ...         return fr.dot(p["user"], p["items"])
    ...     def step(self, step):
    ...         self.descend(step, {"user": 0.1, "items": 1.0})
    >>> run = fr.train(Mine(), data, rounds=1)
    """

    view: ClassVar[View] = "global"
    """The item rows a device ranks with: its `own`, as tuned this round, or the server's new `global` ones."""

    sums: ClassVar[bool] = False
    """The server works with the sum of what the devices send; with their mean otherwise."""
    closed_form: ClassVar[bool] = False
    """Devices solve for their parameters, so there are no steps that a plug-in could change."""

    sends_parts: ClassVar[bool] = False
    """Whether a round may send only some of what it sends in all."""

    refuses: ClassVar[Mapping[str, str]] = {}
    """Plug-ins that make no sense on this method, with the reason."""

    batch: PositiveInt = 256
    """Samples in a device's batch."""
    negatives: NonNegativeInt = 4
    """Fresh negatives drawn for each positive, every round."""
    epochs: Annotated[int, Field(ge=1, le=200)] = 1
    """Passes of a device over its samples in a round."""

    def shared(self) -> dict[str, Param]:
        """Parameters that the server aggregates: item tables (`rows`) and layers."""
        return {}

    def private(self) -> dict[str, Param]:
        """Parameters that never leave the device."""
        return {}

    def sends(self) -> dict[str, Param]:
        """What a device sends: values per touched item (`rows`) or as a whole. By default the change of all shared."""
        return self.shared()

    def speaks(self, round_: int) -> bool:
        """Whether devices send anything in a round. Where they do not, the round costs no privacy."""
        return True

    def cover(self, users: Tensor, samples: Samples, n_items: int) -> Tensor | None:
        """[C, P] items whose rows a device fetches and sends besides those of its samples, to hide these among them."""
        return None

    def check(self, devices: Devices) -> None:
        """Refuse data that the method cannot learn from, with a `UserError`."""

    def effort(self, lengths: Tensor, n_items: int) -> float:
        """How many items could be scored in the time in which devices with so many samples learn from them. It decides
        how often rounds are ranked, and for how many users. Where rounds try settings, every one is for all users."""
        return float(lengths.sum()) if self.most_rounds is None else math.inf

    def fetch(self, shared: Params, users: Tensor, rows: Rows) -> tuple[Params, Params]:
        """What the devices receive: rows [U, dim] for their item tables, their own copies [C, ...] of the layers."""
        tables, layers = {}, {}
        for name, param in self.shared().items():
            if param.rows:
                tables[name] = shared[name].index_select(0, rows.ids)
            else:
                layers[name] = shared[name].expand(len(users), *shared[name].shape).clone()
        return tables, layers

    def message(self, cohort: Cohort, shared: Params) -> Params:
        """The values of `sends`: [U, width] for items, [C, ...] for the rest; a name with nothing to say this round is
        left out. By default new minus received."""
        tables, layers = self.fetch(shared, cohort.users, cohort.rows)
        changes = {name: cohort.tables[name] - received for name, received in tables.items()}
        return changes | {name: cohort.params[name] - received for name, received in layers.items()}

    def adds_up(self, round_: int) -> bool:
        """Whether `summed` gives the sum of a round's messages more cheaply than each of them. It is asked for where
        nobody looks at a single one. A method that sends items' rows has no such sum."""
        return False

    def summed(self, cohort: Cohort, shared: Params) -> Params:
        """The sum of the cohort's messages, [...] for each name."""
        raise NotImplementedError(f"{type(self).__name__}.summed")

    def stages(self) -> tuple[Stage, ...]:
        """Stages that the method itself puts first into the channel."""
        return ()

    @property
    def opens_updates(self) -> bool:
        """Whether its server works on single devices' updates, not only on their sum."""
        return type(self).receive is not DeviceMethod.receive

    def upload_bytes(self, cohort: Cohort, message: Params) -> Tensor | None:
        """Bytes each device sends, [C]. None: the cheapest of the channel's encodings, 4 bytes a code or value."""
        return None

    def download_bytes(self, cohort: Cohort) -> Tensor | None:
        """Bytes each device receives, [C]. None: the rows and layers that its message changes."""
        return None

    def receive(self, users: Tensor, ids: Tensor, owner: Tensor, message: Params, shared: Params) -> Params | None:
        """What the server makes of a cohort's messages before it adds them up with others, summed over the cohort; rows
        r of the message are item ids[r] of users[owner[r]]. None: the messages themselves."""
        return None

    def server_start(self, shared: Params) -> Params:
        """What the server itself remembers between rounds, such as an optimiser's moments."""
        return {}

    def server_step(self, shared: Params, mean: Params, memory: Params) -> Params:
        """New shared parameters from the mean (or sum, see `sums`) of what the devices sent; may change its memory in
        place."""
        return {**shared, **{name: shared[name] + change for name, change in mean.items()}}

    def recall(self, shared: Params, history: History, items: Tensor) -> Params:
        """What devices make of their own histories and the shared parameters, for the items [C, K] that they rank: it
        joins what `score` is given. By default nothing: private parameters hold all that a device has learned."""
        return {}

    def unknown(self, shared: Params, memory: Params) -> Tensor | None:
        """Scores [n_items] for a device that has no items, of what the server has: shared parameters and its memory.
        None: those that private parameters give as they start. They are popular items' where devices all start alike
        and learn by gradients: rows that many devices pull then point along the start."""
        return None

    def score(self, p: Params) -> Tensor:
        """Logits [C, B] of the items whose rows p holds."""
        raise NotImplementedError(f"{type(self).__name__}.score")

    def item_vectors(self, model: Params) -> Tensor | None:
        """By default the shared item rows side by side."""
        rows = [model[name] for name, param in self.shared().items() if param.rows]
        return torch.cat(rows, 1) if rows else None

    def features(self, p: Params) -> Tensor:
        """What the last layer of the score multiplies, [C, B, width]. By default the shared item rows side by side."""
        rows = [p[name] for name, param in self.shared().items() if param.rows]
        return torch.cat(rows, 2) if len(rows) > 1 else rows[0]

    def inspect(self, shared: Params) -> Notes:
        """What the server notes of its parameters after a round: how many dimensions its item tables use."""
        notes: Notes = {}
        for name, param in self.shared().items():
            if param.rows and 1 < shared[name].shape[1] <= 512:
                values = singular_values(shared[name])
                notes |= {f"{name}: effective rank": effective_rank(values), f"{name}: spectrum": values.tolist()}
        return notes

    def step(self, step: Step) -> None:
        """Learn from one batch, on every device of the cohort at once."""
        raise NotImplementedError(f"{type(self).__name__}.step")

    def fit(self, cohort: Cohort) -> None:
        """A device's local learning in one round."""
        for epoch in range(self.epochs):
            for step in cohort.steps(self.batch, epoch):
                self.step(step)

    def loss(self, p: Params, step: Step) -> Tensor:
        """Each device's mean cross-entropy over its batch, [C]."""
        of = torch.nn.functional.binary_cross_entropy_with_logits
        return (of(self.score(p), step.labels, reduction="none") * step.weight).sum(1)

    def descend(self, step: Step, rates: Mapping[str, float | Tensor]) -> None:
        """Move the named parameters down the gradient taken at their current values, each by its own rate."""
        for name, gradient in self.gradient(step, tuple(rates)).items():
            step.move(name, gradient, rates[name])

    def gradient(self, step: Step, names: Sequence[str]) -> Params:
        """Each device's gradient of its loss with respect to the named parameters, at their current values."""
        loss, found = self.derive(step.values(), step, names)
        step.keep(loss)
        return found

    def derive(self, p: Params, step: Step, names: Sequence[str]) -> tuple[Tensor, Params]:
        """Each device's loss at p [C] and its gradient: by autograd here, from the sum of all devices' losses. A method
        may know it in closed form."""
        p = p | {name: p[name].detach().requires_grad_() for name in names}
        loss = self.loss(p, step)
        return loss.detach(), dict(zip(names, torch.autograd.grad(loss.sum(), [p[n] for n in names]), strict=True))
