"""One round on a device without torch, user by user: fit, what is sent, scores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from federec.data.split import Split
from federec.light.draw import Integers, Samples, draw
from federec.light.fit import Additive, Learner, fit_additive, fit_linear
from federec.light.start import Floats
from federec.light.state import LightState
from federec.methods.base import DeviceMethod
from federec.methods.forms import AdditiveScore, LinearScore

_STAGES = {"dense", "secure-sum"}


def lacks(method: DeviceMethod, stages: Iterable[str], n_items: int) -> str | None:
    """What of a method and of the stages with these names needs torch, in words; None where NumPy is enough."""
    form, named = method.fused_form(n_items), "+".join([method.name, *method.plugins])
    known = isinstance(form, LinearScore | AdditiveScore) and not form.mixing and not form.emphasis
    checks = type(method).check is not DeviceMethod.check  # which looks at tensors
    other = isinstance(form, LinearScore) and form.own
    other = other or (isinstance(form, AdditiveScore) and form.alternate)
    if not known or checks or other:
        return f"'{named}' as it is set"
    others = [stage for stage in stages if stage not in _STAGES]
    return f"stage '{others[0]}'" if others else None


@dataclass(frozen=True)
class Learned:
    """What one user's device has learned in a round."""

    ids: Integers
    """Items that it holds rows of, ascending."""
    sent: dict[str, Floats]
    """Item table -> change of these rows."""
    rows: dict[str, Floats]
    """Item table -> its own tuned rows."""
    losses: list[float]


@dataclass(frozen=True)
class Light:
    """A method with a linear or an additive score on the users of a device."""

    method: DeviceMethod
    split: Split
    seed: int
    close_held_out: bool

    @property
    def form(self) -> LinearScore | AdditiveScore:
        form = self.method.fused_form(self.split.data.n_items)
        assert isinstance(form, LinearScore | AdditiveScore)  # see `lacks`
        return form

    def length(self, user: int) -> int:
        """How many samples a user has in a round."""
        positives = int(self.split.ptr[user + 1] - self.split.ptr[user])
        has_all = len(self.split.history(self.close_held_out, np.array([user]))[1]) >= self.split.data.n_items
        return positives if has_all else positives * (1 + self.method.negatives)

    def samples(self, user: int, round_: int) -> Samples:
        """What a user learns from in a round."""
        return draw(self.split, user, self.seed, round_, self.method.negatives, self.close_held_out)

    def learn(self, user: int, round_: int, shared: dict[str, Floats], state: LightState) -> Learned:
        """A user's round: private parameters change in the state."""
        form, samples = self.form, self.samples(user, round_)
        learner, ids = Learner.of(samples, self.method.batch, self.method.epochs)
        weight, bias = self._private(user, state)
        if isinstance(form, LinearScore):
            received = {form.table: shared[form.table][ids]}
            rows = {form.table: received[form.table].copy()}
            fit_linear(form, learner, rows[form.table], weight, bias)
        else:
            received = {form.common: shared[form.common][ids]} if form.common else {}
            rows = {name: value.copy() for name, value in received.items()}
            own = state.stores[form.own].rows(user, ids) if form.own else np.zeros((len(ids), len(weight)), np.float32)
            common = rows[form.common] if form.common else np.zeros_like(own)
            fit_additive(form, learner, round_, Additive(common, own, weight, bias))
            if form.own:
                store = state.stores[form.own]
                store.held[user] = store.of(user).plus(ids, own)
        state.private[form.weight][user] = weight.reshape(state.private[form.weight].shape[1:])
        if form.bias is not None:
            state.private[form.bias][user] = bias.reshape(state.private[form.bias].shape[1:])
        sent = {name: np.subtract(rows[name], old, out=old) for name, old in received.items()}
        return Learned(ids, sent, rows, learner.losses)

    def scores(
        self, user: int, shared: dict[str, Floats], state: LightState, tuned: Learned | None = None
    ) -> NDArray[np.float32]:
        """A user's scores of all items, with the server's rows; where `tuned` is given, with the user's own instead."""
        form = self.form
        weight, bias = self._private(user, state)
        name = form.table if isinstance(form, LinearScore) else form.common
        scores: NDArray[np.float32] = np.repeat(bias, self.split.data.n_items)
        if name:
            scores += shared[name] @ weight
        if tuned is not None and name:
            scores[tuned.ids] = tuned.rows[name] @ weight + bias
        if isinstance(form, AdditiveScore) and form.own:
            scores += state.stores[form.own].scores(user, weight)
        return scores

    def _private(self, user: int, state: LightState) -> tuple[Floats, Floats]:
        """Copies of a user's weight [dim] and bias [1]; a form without a bias has 0."""
        form = self.form
        weight = state.private[form.weight][user].reshape(-1).copy()
        bias = np.zeros(1, np.float32) if form.bias is None else state.private[form.bias][user].reshape(-1).copy()
        return weight, bias
