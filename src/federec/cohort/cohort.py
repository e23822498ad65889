"""A cohort: devices stacked and trained side by side.

Devices share no parameter, so the gradient of the *sum* of their losses is each device's own gradient: plain
autograd, no loop over devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import embedding

from federec.cohort.draw import History, Samples
from federec.cohort.layers import Params
from federec.cohort.optim import Adam, sgd_
from federec.cohort.rows import Rows


@dataclass
class Cohort:
    """The state of stacked devices during one round. Devices are sorted by falling number of samples.

    A method that overrides `fit` is given one:

    >>> class Twice(fr.FedMF):
    ...     def fit(self, cohort: fr.Cohort) -> None:
    ...         super().fit(cohort)
    ...         super().fit(cohort)
    >>> run = fr.train(Twice(dim=8), data, rounds=1)
    """

    users: Tensor
    samples: Samples
    rows: Rows
    tables: Params
    """Item table -> [U, dim]: each device's own rows."""
    params: Params
    """Private parameters, and each device's own copy of the shared layers: [C, ...]."""
    round: int = 1
    history: History | None = None
    """The distinct items that each device trains on, oldest first."""
    emphasis: Tensor | None = None
    """[U] weight of a sample of each row in its device's mean loss; None means equal weights."""
    losses: list[Tensor] = field(default_factory=list)
    """Loss of each active device, one entry per gradient."""
    notes: dict[str, list[Tensor]] = field(default_factory=dict)
    """Figures [A] of devices that a method reports; their means over all devices go into the round's record."""
    outbox: Params = field(default_factory=dict)
    """What the devices send, where that is not the change of a parameter."""

    def __len__(self) -> int:
        return len(self.users)

    @property
    def n_items(self) -> int:
        return self.rows.n_items

    def own_rows(self) -> Tensor:
        """[C, L] the row of each item of the devices' histories; for padding a row of the same device."""
        assert self.history is not None
        owner = torch.arange(len(self), device=self.users.device)[:, None]
        return self.rows.find(owner, self.history.items).where(self.history.real, self.rows.slots[:, :1])

    def steps(self, batch: int, epoch: int = 0, half: Literal[0, 1] | None = None) -> Iterator[Step]:
        """The epoch's batches in order; a device takes part until its samples are used up. With `half`, only the first
        or the second half of each device's shuffled samples; the first half gets the odd sample."""
        order, sizes = self.samples.order(epoch), self.samples.counts
        if half is not None:
            first = (sizes + 1) // 2
            position = torch.arange(order.shape[1], device=order.device) + half * first[:, None]
            order = order.gather(1, position.clamp_(max=order.shape[1] - 1))
            sizes = sizes - first if half else first
        slots = self.rows.slots.gather(1, order)
        labels = self.samples.labels.gather(1, order)
        counts = sizes.tolist()  # falling, so the active devices are always the first ones
        active = len(counts)
        for start in range(0, counts[0], batch):
            while counts[active - 1] <= start:
                active -= 1
            width = slice(start, min(start + batch, counts[0]))
            left = (sizes[:active, None] - start).clamp(max=batch)
            real = torch.arange(width.stop - start, device=slots.device) < left
            weight = self.emphasised(real / left, slots[:active, width])
            yield Step(self, active, slots[:active, width], labels[:active, width], weight)

    def passes(self, batch: int, epochs: int) -> Iterator[Iterable[Step]]:
        """The batches of each epoch. Where one batch holds all samples it is the same in every epoch, whatever its
        order: its rows then stay gathered from pass to pass, and are written back after the last."""
        if self.samples.counts[0] > batch:
            yield from (self.steps(batch, epoch) for epoch in range(epochs))
            return
        step = self.whole(batch)
        step.resident = True
        yield from [[step]] * epochs
        step.close()

    def emphasised(self, weight: Tensor, slots: Tensor) -> Tensor:
        """The weights of samples, multiplied by the emphasis on their rows."""
        return weight if self.emphasis is None else weight * self.emphasis[slots]

    def whole(self, chunk: int, epoch: int = 0) -> Step:
        """All samples as one batch; its loss is the sum of the means over chunks of the shuffled samples. An item that
        a device drew several times occurs once, with the sum of its weights: the same loss for less work."""
        order, counts = self.samples.order(epoch), self.samples.counts[:, None]
        position = torch.arange(order.shape[1], device=order.device)
        weight = (position < counts) / (counts - position // chunk * chunk).clamp(1, chunk)
        slots = self.rows.slots.gather(1, order)
        weight, slots = self.emphasised(weight, slots), slots.flatten()
        total = weight.new_zeros(len(self.rows)).scatter_add_(0, slots, weight.flatten())
        positive = weight * self.samples.labels.gather(1, order)
        labels = torch.zeros_like(total).scatter_add_(0, slots, positive.flatten()) / total.clamp(min=1e-12)
        rows = self.rows.counts(len(self))[:, None]  # a device's rows are consecutive
        column = torch.arange(int(rows.max()), device=order.device)
        own = rows.cumsum(0) - rows + column.minimum(rows - 1)
        return Step(self, len(self), own, labels[own], total[own] * (column < rows), distinct=True)


@dataclass
class Step:
    """One batch on every active device of the cohort at once.

    A method that overrides `step` is given one:

    >>> class Halved(fr.FedMF):
    ...     def step(self, step: fr.Step) -> None:
    ...         self.descend(step, {"user": self.lr / 2, "items": self.item_rate(step.n_items) / 2})
    >>> run = fr.train(Halved(dim=8), data, rounds=1)
    """

    cohort: Cohort
    active: int
    slots: Tensor
    """[A, B] rows of the batch's samples in the cohort's item tables."""
    labels: Tensor
    weight: Tensor
    """[A, B] weight of each sample in its device's mean; 0 for padding."""
    distinct: bool = False
    """Whether it holds no item of a device twice."""
    resident: bool = False
    """For distinct rows that several passes train: they change in their gathered copies until `close`."""
    _gathered: Params = field(default_factory=dict)
    _shift: Params = field(default_factory=dict)

    @property
    def n_items(self) -> int:
        return self.cohort.n_items

    @property
    def sizes(self) -> Tensor:
        """[A] samples of each device in the batch."""
        return self.cohort.samples.counts if self.resident else self.weight.count_nonzero(1)

    def values(self) -> Params:
        """Current values of all parameters of the active devices, item rows gathered [A, B, dim]."""
        for name, table in self.cohort.tables.items():
            if name not in self._gathered:
                self._gathered[name] = embedding(self.slots, table)
        values = {name: value[: self.active] for name, value in self.cohort.params.items()} | self._gathered
        return values | {name: values[name] + shift for name, shift in self._shift.items()}

    @contextmanager
    def shifted(self, by: Params) -> Iterator[None]:
        """In this context `values` are the current ones plus these; losses computed in it are not reported."""
        self._shift = by
        try:
            yield
        finally:
            self._shift = {}

    def scattered(self, name: str, gradient: Tensor) -> Tensor:
        """An item table's gradient [U, dim] from that of its gathered rows [A, B, dim]: summed over occurrences."""
        flat, slots = gradient.flatten(0, 1), self.slots.reshape(-1, 1)
        return torch.zeros_like(self.cohort.tables[name]).scatter_add_(0, slots.expand_as(flat), flat)

    def summed(self, name: str, gradient: Tensor) -> Tensor:
        """A parameter's whole gradient; for gathered item rows the sum over a row's occurrences, at each of them."""
        if self.distinct or name not in self.cohort.tables:
            return gradient
        return embedding(self.slots, self.scattered(name, gradient))

    def keep(self, loss: Tensor) -> None:
        """Report the devices' losses [A], unless they are those of shifted parameters."""
        if not self._shift:
            self.cohort.losses.append(loss)

    def shrink(self, name: str, factor: Tensor) -> None:
        """Multiply one parameter by a factor per active device [A]: an item table in all rows that the device holds in
        the round, not only in those of the batch."""
        if self.resident and name in self.cohort.tables:
            self.values()[name].mul_(factor[:, None, None])
            return
        if name in self.cohort.tables:
            table, owner = self.cohort.tables[name], self.cohort.rows.owner
            # Rows are sorted by device, so those of the active devices come first.
            held = len(owner) if self.active == len(self.cohort) else int((owner < self.active).sum())
            table[:held].mul_(factor[owner[:held], None])
            self._gathered.pop(name, None)
            return
        value = self.cohort.params[name][: self.active]
        value.mul_(factor.view(-1, *[1] * (value.dim() - 1)))

    def move(self, name: str, gradient: Tensor, rate: float | Tensor) -> None:
        """One optimiser step on one parameter, by one rate or a rate per active device [A]; a row that a batch holds
        twice moves by both gradients."""
        if isinstance(rate, Tensor):
            rate = rate.view(-1, *[1] * (gradient.dim() - 1))
        if self.resident and name in self.cohort.tables:
            self.values()[name].addcmul_(gradient, torch.as_tensor(rate, device=gradient.device), value=-1)
            return
        if name in self.cohort.tables:
            table = self.cohort.tables[name]
            change = (gradient * -rate).flatten(0, 1)
            table.scatter_add_(0, self.slots.reshape(-1, 1).expand_as(change), change)
            self._gathered.pop(name, None)
            return
        params = self.cohort.params
        value = params[name][: self.active]
        if f"{name}/m" in params:
            m, v, t = (params[f"{name}/{part}"][: self.active] for part in "mvt")
            Adam().step_(value, gradient, m, v, t, rate)
        else:
            sgd_(value, gradient, rate)

    def close(self) -> None:
        """Write resident rows back into the tables. Without padding they are in the order of the tables' rows."""
        held = self.cohort.rows.counts(self.active)[:, None]
        real = torch.arange(self.slots.shape[1], device=held.device) < held
        for name, rows in self._gathered.items():
            self.cohort.tables[name].copy_(rows[real])
        self._gathered.clear()
