"""How one device learns, in NumPy: what the methods of a linear or an additive score do in torch, to 1e-5.

An item that a batch holds several times has one score, so all is computed for distinct rows r. With n samples in the
batch, t_r = (samples of r) / n, y_r = (positives of r) / n and the score s_r of the row:

    loss = sum_r t_r softplus(s_r) - y_r s_r        e_r = t_r sigma(s_r) - y_r, its derivative in s_r
    s_r = w . v_r + b:    d loss / dw = sum_r e_r v_r,    d loss / db = sum_r e_r,    d loss / dv_r = e_r w
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from federec.light.draw import Integers, Samples
from federec.light.start import Floats
from federec.methods.forms import AdditiveScore, LinearScore


class Batch(NamedTuple):
    """A batch, by distinct row of the device."""

    size: int
    shares: Floats
    """t_r; 0 for rows that are not in it."""
    positives: Floats
    """y_r."""


@dataclass
class Learner:
    """One device in a round."""

    samples: Samples
    slots: Integers
    """The row of each sample."""
    rows: int
    """How many distinct rows there are."""
    batch: int
    epochs: int
    losses: list[float] = field(default_factory=list)
    """One entry per gradient."""

    @staticmethod
    def of(samples: Samples, batch: int, epochs: int) -> tuple[Learner, Integers]:
        """The device, and the items of its rows, ascending."""
        ids, slots = np.unique(samples.items, return_inverse=True)
        return Learner(samples, slots, len(ids), batch, epochs), ids

    def steps(self, epoch: int = 0, half: int | None = None) -> Iterator[Batch]:
        """The batches of an epoch; with `half`, of the first or the second half of the shuffled samples."""
        order = self.samples.order(epoch)
        if half is not None:
            first = (len(order) + 1) // 2
            order = order[first:] if half else order[:first]
        for start in range(0, len(order), self.batch):
            some = order[start : start + self.batch]
            yield Batch(len(some), self._summed(some, None), self._summed(some, self.samples.labels[some]))

    def _summed(self, some: Integers, values: Floats | None) -> Floats:
        """Values of some samples, or their number, over their rows; as shares of the batch."""
        return (np.bincount(self.slots[some], values, self.rows) / len(some)).astype(np.float32)


def fit_linear(form: LinearScore, learner: Learner, rows: Floats, weight: Floats, bias: Floats) -> None:
    """Learn rows [U, dim], weight [dim] and bias [1], in place."""
    if form.passes:
        weight[:] = 0
        support = list(learner.steps(half=0))
        for _ in range(form.passes):
            for batch in support:
                _step_weight(form, learner, batch, rows, weight, bias)
        for _ in range(learner.epochs):
            for batch in learner.steps(half=1 if form.disjoint else None):
                _step_rows(form, learner, batch, rows, weight, bias)
        return
    for epoch in range(learner.epochs):
        for batch in learner.steps(epoch):
            if form.alternate:
                _step_weight(form, learner, batch, rows, weight, bias)
                _step_rows(form, learner, batch, rows, weight, bias)
            else:
                frozen = rows.copy(), weight.copy(), bias.copy()
                loss = len(learner.losses)
                _step_weight(form, learner, batch, frozen[0], weight, bias)
                _step_rows(form, learner, batch, rows, *frozen[1:])
                del learner.losses[loss + 1 :]  # it is one gradient


def _step_weight(form: LinearScore, learner: Learner, batch: Batch, rows: Floats, weight: Floats, bias: Floats) -> None:
    """Step weight and bias."""
    loss, error = _cross_entropy(_score(rows, weight, bias), batch)
    learner.losses.append(loss)
    along = error @ rows, error.sum(keepdims=True) * (form.bias is not None)
    if form.rho:
        uphill = _uphill(along, form.rho)
        _, error = _cross_entropy(_score(rows, weight + uphill[0], bias + uphill[1]), batch)
        along = error @ rows, error.sum(keepdims=True) * (form.bias is not None)
    weight -= np.float32(form.rate) * along[0]
    bias -= np.float32(form.rate) * along[1]


def _step_rows(form: LinearScore, learner: Learner, batch: Batch, rows: Floats, weight: Floats, bias: Floats) -> None:
    """Step rows."""
    loss, error = _cross_entropy(_score(rows, weight, bias), batch)
    learner.losses.append(loss)
    if form.item_rho:
        (uphill,) = _uphill([error[:, None] * weight], form.item_rho)
        _, error = _cross_entropy(_score(rows + uphill, weight, bias), batch)
    rows -= np.float32(form.item_rate) * error[:, None] * weight


class Additive(NamedTuple):
    """What an additive score is made of: of a device as it is, its gradient, or a move of it."""

    common: Floats
    own: Floats
    weight: Floats
    bias: Floats


def fit_additive(form: AdditiveScore, learner: Learner, round_: int, parts: Additive) -> None:
    """Learn the rows c and d [U, dim], weight [dim] and bias [1], in place. A table that the form has not is 0."""
    pace, total, last = np.float32(form.round_decay ** (round_ - 1)), 0.0, 0.0
    samples = len(learner.slots)
    rate, common_rate, own_rate = form.rates
    rates = common_rate if form.common else 0.0, own_rate if form.own else 0.0, rate, rate
    for epoch in range(learner.epochs):
        for batch in learner.steps(epoch):
            loss, gradient = _additive(form, round_, batch, parts)
            learner.losses.append(loss)
            gradient = _sharp(form, round_, batch, parts, gradient)
            for value, along, step in zip(parts, gradient, rates, strict=True):
                value *= 1 - pace * np.float32(step * form.weight_decay)
                along *= pace * np.float32(step)
                value -= along
            pace *= np.float32(form.step_decay)
            total += loss * batch.size
        mean = total / ((epoch + 1) * samples)
        if epoch and abs(mean - last) < form.tolerance * abs(last):
            return
        last = mean


def _sharp(form: AdditiveScore, round_: int, batch: Batch, parts: Additive, gradient: Additive) -> Additive:
    """The gradient where c, or d, w and b together, are moved uphill; that of the rest stays."""
    found = gradient
    if form.common_rho:
        (uphill,) = _uphill([gradient.common], form.common_rho)
        moved = _additive(form, round_, batch, parts._replace(common=parts.common + uphill))[1]
        found = found._replace(common=moved.common)
    if form.rho:
        private = [value + move for value, move in zip(parts[1:], _uphill(gradient[1:], form.rho), strict=True)]
        found = Additive(found.common, *_additive(form, round_, batch, Additive(parts.common, *private))[1][1:])
    return found


def _additive(form: AdditiveScore, round_: int, batch: Batch, parts: Additive) -> tuple[float, Additive]:
    """The loss and its gradient, with FedRAP's regularisers."""
    common, own, weight, bias = parts
    away, small = map(np.float32, form.regularisers(round_))
    loss, error = _cross_entropy(_score(common, weight, bias) + own @ weight, batch)
    share = batch.shares / np.float32(common.shape[1])
    # Three tables at once beside c and d, and no more: they are most of a device's memory.
    table = np.square(common) if form.squared else np.abs(common)
    loss += float(small * (share @ table).sum())
    table = np.subtract(own, common, out=table)
    loss -= float(away * (share @ np.einsum("rd,rd->r", table, table)))
    table *= (2 * away * share)[:, None]
    for_own = error[:, None] * weight
    for_common = for_own + table
    for_own -= table
    table = np.multiply(2, common, out=table) if form.squared else np.sign(common, out=table)
    table *= (small * share)[:, None]
    for_common += table
    return loss, Additive(for_common, for_own, error @ common + error @ own, error.sum(keepdims=True))


def _score(rows: Floats, weight: Floats, bias: Floats) -> Floats:
    score: Floats = np.add(rows @ weight, bias)
    return score


def _cross_entropy(score: Floats, batch: Batch) -> tuple[float, Floats]:
    """The loss of these scores of the rows, and its derivative in each."""
    with np.errstate(over="ignore"):  # sigma of a very low score is 0
        error = batch.shares / (1 + np.exp(-score)) - batch.positives
    loss = (batch.shares * np.logaddexp(np.float32(0), score) - batch.positives * score).sum()
    return float(loss), error


def _uphill(gradient: Sequence[Floats], rho: float) -> list[Floats]:
    """A move of length rho along a gradient."""
    norm = np.sqrt(sum(float(np.square(part).sum()) for part in gradient))
    return [part * np.float32(rho / max(norm, 1e-12)) for part in gradient]
