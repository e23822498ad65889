"""What a faster engine needs to know of a method: one small class for each kind of method that it has a kernel for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from federec.mathematics.decay import PairTables
    from federec.mathematics.transformer import Transformer


@dataclass(frozen=True)
class Mixing:
    """Shared rows l are mixed with those received, a l + (1 - a) g, and regularised (`plugins.plgc`)."""

    odds: str | None
    """Private log-odds of a, set by the kernel rule; None means that a is `weight`."""
    weight: float
    smoothing: float
    """How much of the log-odds is kept at each step."""
    beta: float
    gamma: float
    """Weights of the redundancy loss, and in it of correlations between different dimensions."""


@dataclass(frozen=True)
class Emphasis:
    """Positives weigh 2^(-age / half_life) + least, times what makes that 1 on average (`plugins.recency`)."""

    half_life: float
    least: float


@dataclass(frozen=True, kw_only=True)
class _Noised:
    laplace: float = 0.0
    """Scale of the noise on what is sent (`plugins.ldp`)."""


@dataclass(frozen=True, kw_only=True)
class _Weighed:
    emphasis: Emphasis | None = None
    """On new positives; None means that all samples weigh the same."""


@dataclass(frozen=True)
class LinearScore(_Noised, _Weighed):
    """The score is sigma(w . v + b) and the step is SGD."""

    table: str
    """Item rows v, shared unless `own`."""
    weight: str
    """Private w."""
    bias: str | None
    """Private b, if any."""
    rate: float
    """Step of w and b."""
    item_rate: float
    """Step of v."""
    alternate: bool
    """v steps after w, with the new w; both step at once otherwise."""
    passes: int = 0
    """Passes over half of the samples that rebuild w from 0 in every round, before v steps; 0 means that w is kept."""
    disjoint: bool = True
    """With passes: v steps only on the other half of the samples."""
    rho: float = 0.0
    """How far w and b are moved uphill before their gradient is taken (`mathematics.sharpness`)."""
    item_rho: float = 0.0
    """The same of v."""
    own: bool = False
    """v is private: kept from round to round, not sent."""
    mixing: Mixing | None = None
    """Of v with the rows received."""


@dataclass(frozen=True)
class AdditiveScore(_Noised, _Weighed):
    """The score is sigma(w . (c + d) + b), all step at once by SGD with weight decay, c and d are regularised as in
    FedRAP, and a device stops when its loss has settled."""

    common: str | None
    """Shared item rows c, if any."""
    own: str | None
    """Private item rows d, if any."""
    weight: str
    """Private w."""
    bias: str
    """Private b."""
    rates: tuple[float, float, float]
    """Steps of w and b, of c and of d in the first batch of the first round."""
    regularisers: Callable[[int], tuple[float, float]]
    """Weights in a round of the term that pushes c and d apart and of the norm of c."""
    squared: bool
    """The norm of c is the mean of its squares; of its absolute values otherwise."""
    weight_decay: float
    """Of all rows that a device holds in the round, and of w and b; at most half a parameter a step."""
    step_decay: float
    """A device's steps shrink by this after each batch."""
    round_decay: float
    """All steps shrink by this after each round."""
    tolerance: float
    """Change of the mean loss since the round began, as a fraction of it, below which a device stops after a pass."""
    alternate: bool = False
    """c and d step after w and b, with the new ones; all step at once otherwise."""
    rho: float = 0.0
    """How far w, b and d are moved uphill before their gradient is taken (`mathematics.sharpness`)."""
    common_rho: float = 0.0
    """The same of c."""
    mixing: Mixing | None = None
    """Of c with the rows received."""


@dataclass(frozen=True)
class NeuralScore(_Noised, _Weighed):
    """The score is sigma(h . [p * v, t] + b), with t what a network makes of q and x: ReLU after each of its layers."""

    tables: tuple[str, ...]
    """Shared item rows v and x, or only x: then there is no product."""
    users: tuple[str, ...]
    """Private p and q, or only q."""
    layers: tuple[str, ...]
    """Weight and bias of each layer in turn; at the end h and b. Shared unless `dual`."""
    rate: float
    """Step of p and q."""
    item_rate: float = 0.0
    """Step of v and x, by SGD."""
    layer_rate: float = 0.0
    """Step of the layers, by SGD."""
    gradients: bool = False
    """Rows and shared layers do not step. A pass is one step, of p and q by Adam, on the sum of the losses of all
    batches; the gradients of rows and shared layers are sent."""
    dual: bool = False
    """Dual personalisation (`plugins.dualper`): layers are private and step with p and q; rows that step do so after
    them, with the new ones; a device ranks with its own rows."""
    rho_shared: float = 0.0
    """How far what is shared is moved uphill before its gradient is taken (`mathematics.sharpness`)."""
    rho_private: float = 0.0
    """The same of what is private."""
    mixing: Mixing | None = None
    """Of x with the rows received."""
    widest: int = 0
    """Width of the widest of v, x and the layers."""


@dataclass(frozen=True)
class GraphScore(_Weighed):
    """Attention over a device's items and other users who have them (`mathematics.attention`). A device takes one
    gradient: its user's vector steps by Adam; rows and layers are clipped and sent with noise and with pseudo rows."""

    table: str
    """Shared item rows v."""
    layers: tuple[str, str, str]
    """Shared W, a and a'."""
    vectors: str
    """All users' vectors, as they sent them last."""
    user: str
    """Private vector of the user."""
    rate: float
    """Step of the user's vector."""
    neighbours: int
    """Other users at each item, at most."""
    pseudo: int
    """Pseudo items drawn."""
    clip: float
    """Largest value of a gradient that is sent; only with noise."""
    noise: float
    """Scale of the Laplace noise that the method itself puts on every value sent; 0 means that there is none."""


@dataclass(frozen=True)
class DecayedPairs:
    """Devices learn nothing. They send sums over pairs of their items. What a pair is worth only depends on the order
    of the two, their distance and how many items follow (`mathematics.decay`)."""

    parts: Callable[[int], tuple[str, ...]]
    """The names of the sums that are sent in a round; empty means that nothing is."""
    tables: Callable[[int, int], PairTables]
    """What pairs are worth in these sums, for a round and the longest history."""
    traffic: Callable[[int, Tensor, int], tuple[Tensor, Tensor]]
    """Bytes that devices send and receive, for a round, the numbers of their own items and the number of all items."""


@dataclass(frozen=True)
class SampledProducts(_Noised):
    """Torch plays the round; a kernel takes those rows of large products that devices need (`mathematics.sampled`)."""


@dataclass(frozen=True)
class SummedMessages(_Noised):
    """Torch adds up what devices send (`DeviceMethod.summed`). A kernel adds up the noise on all of it."""

    values: int
    """Values that a device sends in a round whose messages add up."""


@dataclass(frozen=True)
class NextItem(_Noised):
    """A transformer learns which item of a history comes next (`mathematics.windows`); a kernel computes it."""

    network: Transformer


Form = (
    LinearScore | AdditiveScore | NeuralScore | GraphScore | DecayedPairs | SampledProducts | SummedMessages | NextItem
)
