"""Which kernels play the rounds of a method: for each kind of hardware, one table from forms to kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import Tensor

from federec.cohort.draw import Devices
from federec.federation import fused, fused_graph, fused_neural, fused_pairs, fused_products, fused_sums, fused_windows
from federec.federation.channel import Link
from federec.federation.fused_base import Ranker, RoundInputs, first_ranks, held_out_ranks
from federec.federation.server import RoundReport, Sum
from federec.federation.state import State
from federec.kernels.compiling import loads
from federec.methods.base import DeviceMethod, Method
from federec.methods.forms import (
    AdditiveScore,
    DecayedPairs,
    Form,
    GraphScore,
    LinearScore,
    NeuralScore,
    NextItem,
    SampledProducts,
    SummedMessages,
)
from federec.plugins.base import without_form

_JUDGES = 1 << 24
"""Values of judging users that are held at a time: a network is large."""


class Playing(Protocol):
    """A round that a kernel plays, a few users at a time."""

    @property
    def rank(self) -> Ranker | None:
        """As `play`, where threads rank their devices themselves; None where they do not."""

    def play(self, users: Tensor, ask: Tensor, judges: Tensor | None = None) -> Tensor:
        """These users learn; returns the scores of the items `ask` [C, K], each with the user's own rows, by its own
        weights or those of `judges` [C, values], as `judging` of their form has them."""

    def finish(self, sum_: Sum = list) -> RoundReport:
        """The server settles the round."""


def _nothing(form: Any) -> None:
    """These kernels play the form however it is set."""


@dataclass(frozen=True)
class Kernels:
    """What plays methods of one form on one kind of hardware."""

    round: Callable[[Any, RoundInputs], Playing]
    """Begins a round of a form."""
    scores: Callable[[Any, DeviceMethod, State, Devices, Tensor, Tensor], Tensor]
    """Scores for users [C] of items [C, K] with the server's rows."""
    lacks: Callable[[Any], str | None] = _nothing
    """What the kernels cannot do of a form as it is set, as the object of "no kernel ..."; None: they play it."""


@cache
def kernels(kind: str) -> Mapping[type, Kernels]:
    """The table of one kind of hardware, `cpu` or `cuda`. It is asked for exactly the class of a form, so that a form
    without kernels of its own is not played by those of another."""
    if kind == "cpu":
        return {
            LinearScore: Kernels(fused.LinearRound, fused.linear_scores),
            AdditiveScore: Kernels(fused.AdditiveRound, fused.additive_scores),
            NeuralScore: Kernels(fused_neural.NeuralRound, fused_neural.neural_scores),
            GraphScore: Kernels(fused_graph.GraphRound, fused_graph.graph_scores),
            DecayedPairs: Kernels(fused_pairs.PairsRound, fused_pairs.pairs_scores),
            SampledProducts: Kernels(fused_products.ProductsRound, fused_products.products_scores),
            SummedMessages: Kernels(fused_sums.SummedRound, fused_sums.summed_scores, _summed_lacks),
            NextItem: Kernels(fused_windows.WindowsRound, fused_windows.windows_scores),
        }
    from federec.federation import fused_gpu, fused_gpu_neural, fused_gpu_phases  # they need triton

    return {
        LinearScore: Kernels(fused_gpu.LinearRound, fused_gpu.linear_scores, _linear_lacks),
        AdditiveScore: Kernels(fused_gpu.AdditiveRound, fused_gpu.additive_scores, _additive_lacks),
        NeuralScore: Kernels(fused_gpu_phases.neural_round, fused_gpu_neural.neural_scores, _neural_lacks),
    }


def _summed_lacks(form: SummedMessages) -> str | None:
    return None if form.laplace > 0 else "is needed where torch adds up messages without noise"


def _linear_lacks(form: LinearScore) -> str | None:
    if form.emphasis is not None:
        return "weighs new items more"
    return None if form.mixing is None else "mixes rows"


def _additive_lacks(form: AdditiveScore) -> str | None:
    if form.emphasis is not None:
        return "weighs new items more"
    if form.laplace > 0:
        return "adds noise to rows of an additive score"
    if form.alternate:
        return "steps the rows of an additive score after its weights"
    if form.mixing is not None:
        return "mixes rows"
    if form.rho > 0 or form.common_rho > 0:
        return "takes gradients of an additive score uphill"
    if form.common is None or form.own is None:
        return "plays one part of an additive score without the other"
    return None


def _neural_lacks(form: NeuralScore) -> str | None:
    from federec.federation import fused_gpu_neural, fused_gpu_phases  # they need triton

    if form.dual:
        return "keeps a network on the device"
    if form.mixing is not None:
        return "mixes rows"
    widest = fused_gpu_phases.WIDEST if form.gradients else fused_gpu_neural.WIDEST
    return f"takes layers wider than {widest}" if form.widest > widest else None


def _unplayed(form: Form, device: str) -> str | None:
    """Why no kernel plays the form on that device, as a sentence without a stop; None: one does."""
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        return f"there are kernels for cpu and cuda, not for {kind}"
    # Triton comes with torch for CUDA; before 2.7 its kernels took no named tuples.
    if kind == "cuda" and (find_spec("triton") is None or tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7)):
        return "kernels for a GPU need Triton, which comes with torch for CUDA, 2.7 or later"
    where = "a GPU" if kind == "cuda" else "a CPU"
    if type(form) not in kernels(kind):
        return f"no kernel on {where} plays a {type(form).__name__}"
    lacking = kernels(kind)[type(form)].lacks(form)
    return None if lacking is None else f"no kernel on {where} {lacking}"


def fits(form: Form | None, device: str) -> bool:
    """Whether there is a kernel for the form on that device."""
    return form is not None and _unplayed(form, device) is None


def why_not(method: Method, n_items: int, device: str, link: Link | None = None) -> str | None:
    """Why no kernel plays the method as it is set on that device, with that link between devices and server, as a
    sentence without a stop; None: one does."""
    form = method.fused_form(n_items)
    if not isinstance(method, DeviceMethod):
        return f"no kernel plays '{method.name}'" if form is None else _unplayed(form, device)
    if form is None:
        return without_form(method, n_items)
    link = link or Link.of(method)
    fused = link.why_not_fused() or link.channel.fuse(form)
    return fused if isinstance(fused, str) else _unplayed(fused, device)


def _form(method: DeviceMethod, devices: Devices, link: Link) -> Form:
    """The form of a method that has one, with what its kernel does of the channel."""
    form = method.fused_form(devices.n_items)
    assert form is not None
    fused = link.channel.fuse(form)
    assert not isinstance(fused, str), fused
    return fused


def fused_round(
    method: DeviceMethod, state: State, devices: Devices, seed: int, round_: int, link: Link | None = None
) -> Playing:
    """A round in which no device has played yet."""
    link = link or Link.of(method)
    form = _form(method, devices, link)
    found = kernels(devices.ptr.device.type)[type(form)]
    return found.round(form, RoundInputs(method, state, devices, seed, round_, link))


def fused_scores(method: DeviceMethod, state: State, devices: Devices, users: Tensor, items: Tensor) -> Tensor:
    """Scores [C, K] of items [C, K] with the server's rows."""
    form = _form(method, devices, Link())
    return kernels(users.device.type)[type(form)].scores(form, method, state, devices, users, items)


def warm_up(method: DeviceMethod, state: State, devices: Devices, link: Link | None = None) -> None:
    """Compile the kernels, or load what was compiled before."""
    if devices.ptr.device.type == "cpu":  # a round in which no device takes part
        users, items = devices.ptr.new_zeros(0), devices.ptr.new_zeros(0, 1)
        first_ranks(torch.zeros(0, 1))
        held_out_ranks(devices, torch.zeros(1, devices.n_items), users, (users, users))
    else:
        users, items, state = devices.ptr.new_zeros(1), devices.ptr.new_zeros(1, 2 * (1 + 99)), state.copy()
    fused_round(method, state, devices, 0, 1, link).play(users, items)
    fused_scores(method, state, devices, users, items)


def compiled(method: DeviceMethod, state: State, devices: Devices, link: Link | None = None) -> bool:
    """Whether the kernels have been compiled on this machine before; then they are loaded. Of a GPU nobody knows."""
    if devices.ptr.device.type != "cpu":
        return False
    return loads(lambda: warm_up(method, state, devices, link))


def neighbours(
    method: DeviceMethod,
    before: State,
    after: State,
    devices: Devices,
    users: Tensor,
    seed: int,
    round_: int,
    size: int,
) -> Iterator[tuple[Tensor, Callable[[Tensor], Tensor]]]:
    """The users, `size` at a time, and what scores [C, K] items of theirs with the rows of another, as
    `scoring.Neighbour` has them: of the one before it in the order of stacking. `before` is the state that the round
    began with, `after` what came of it; the round is played again in `before`."""
    form = _form(method, devices, Link())
    assert isinstance(form, LinearScore | AdditiveScore | NeuralScore)  # others rank with the server's rows
    stacked = users[devices.lengths(users, method.negatives).argsort(descending=True, stable=True)]
    began = State(before.shared, after.private, after.stores)
    yield stacked[:1], partial(fused_scores, method, began, devices, stacked[:1])
    if isinstance(form, NeuralScore):
        judging = partial(fused_neural.judging, after, form)
    else:
        judging = partial(fused.judging, after, form)
    width = judging(users[:1]).shape[1]
    size = max(1, min(size, _JUDGES // width))
    playing = fused_round(method, before, devices, seed, round_)
    for players, judged in zip(stacked[:-1].split(size), stacked[1:].split(size), strict=True):
        judge = partial(playing.play, players, judges=judging(judged))
        if isinstance(form, AdditiveScore):  # the neighbour's shared rows beside the rows of the device that ranks
            judge = partial(fused.with_own, judge, form, after, judged)
        yield judged, judge
