"""What learns and ranks on a node: torch, or, where that is not installed, NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from federec.data.split import Split
from federec.errors import UserError
from federec.evaluation.protocols import protocol
from federec.federation.channel import Channel
from federec.methods.base import DeviceMethod
from federec.network.parameters import Payload
from federec.runs.config import RunConfig

Sums = dict[str, tuple[float, int]]
"""Losses and metrics by name: their sum, and over how many."""


@dataclass(frozen=True)
class Task:
    """What a node's users learn and rank with."""

    config: RunConfig
    method: DeviceMethod
    channel: Channel
    split: Split
    sizes: Sequence[int]
    """How many items the catalogue had in the run, from the first round on."""
    shared: Payload
    """The shared parameters that came."""

    @property
    def n_items(self) -> int:
        return self.split.data.n_items

    @property
    def close_held_out(self) -> bool:
        return protocol(self.config.protocol).close_held_out

    @property
    def hidden(self) -> bool:
        """Whether what is told only leaves as part of a secure sum."""
        return "secure-sum" in self.channel

    @property
    def whole(self) -> bool:
        """Whether the rows of all items came, so that all can be ranked."""
        return not self.shared.rows or len(self.shared.ids) == self.n_items


class Engine(Protocol):
    """Works on one task. A state is of the engine's own kind; what users keep of it is the same bytes for all."""

    @property
    def users(self) -> NDArray[np.int64]:
        """Those who can learn: who has nothing yet cannot."""

    def needed(self, round_: int) -> NDArray[np.int64]:
        """Codes of the items that the users learn from in a round, and rank after it."""

    def start(self) -> Any:
        """The state that every device begins with."""

    def train(self, state: Any, round_: int) -> tuple[Sums, Payload]:
        """Learn, from the state before a round: what is told of it, and the sum of the users' updates as it leaves.
        What is private changes in the state."""

    def evaluate(self, state: Any, round_: int, full: bool) -> Sums:
        """Rank with a state, against all items if `full`. Where devices rank with rows that they tune, the round is
        played again from that state."""

    def scores(self, user: int, state: Any) -> NDArray[np.float32]:
        """A user's scores of all items, with the server's rows."""

    def tuned(self, user: int, state: Any, round_: int) -> NDArray[np.float32]:
        """A user's scores of all items after a round that is played from that state, with the user's own rows."""


def engine_of(task: Task) -> Engine:
    """The engine of this installation; a UserError where it would need torch and there is none."""
    if has_torch():
        from federec.network.torch_engine import TorchEngine

        return TorchEngine(task)
    from federec.light.device import lacks
    from federec.network.light_engine import LightEngine

    lacking = lacks(task.method, [stage.name for stage in task.channel.stages], task.n_items)
    if lacking is not None:
        raise UserError(f"{lacking} needs the package torch; install it with: pip install 'federec[train]'")
    return LightEngine(task)


def has_torch() -> bool:
    """Whether torch is installed."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True
