"""The processes that share the work of a run. Alone, one process owns all devices and a sum is what it is; those that
torchrun starts are in `runtimes.distributed`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor

from federec.cohort.layers import Params
from federec.federation.state import State

T = TypeVar("T")


class Group:
    """The processes of a run. This one is alone: all devices are its own."""

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """Whether this process writes and speaks for the run."""
        return self.rank == 0

    def place(self, device: str) -> str:
        """Where this process computes, if the run asks for `device`."""
        return device

    def deal(self, work: Tensor) -> None:
        """Deal out the devices, whose expected work is given."""

    def mine(self, users: Tensor) -> Tensor:
        """Those of the users that this process owns."""
        return users

    def idle(self, users: Tensor) -> bool:
        """Whether there is a process that owns none of them."""
        return False

    def sum(self, values: list[Params], idle: bool = False) -> list[Params]:
        """Add up over all processes, name by name; where some are idle they may lack names."""
        return values

    def collect(self, state: State) -> None:
        """Bring the private parameters of all devices to the first process."""

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is refused in one process is refused in all, in the same words."""
        yield

    def agree(self, value: T) -> T:
        """What the first process has."""
        return value


ALONE = Group()
