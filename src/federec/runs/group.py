"""The processes that share the work of a run. A single process owns all devices, and its sums are complete already; the
processes that torchrun starts are in `runtimes.distributed`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from federec.cohort.layers import Params
from federec.federation.state import State

T = TypeVar("T")


class Group:
    """The processes of a run: here a single one, which owns all devices."""

    rank, size = 0, 1
    restarts = False
    """Whether the same command is started again when a process is lost."""

    @property
    def first(self) -> bool:
        """Whether this process writes the run folder and prints for the run."""
        return self.rank == 0

    def device(self, asked: str) -> str:
        """The torch device on which this process computes, if the run asks for `asked`."""
        return asked

    def deal(self, work: Tensor) -> None:
        """Deal out the devices to the processes. `work` is the expected work of each."""

    def mine(self, users: Tensor) -> Tensor:
        """The users among these that this process owns."""
        return users

    def idle(self, users: Tensor) -> bool:
        """Whether some process owns none of these users."""
        return False

    def sum(self, values: list[Params], idle: bool = False) -> list[Params]:
        """Add up over all processes, name by name. `idle`: some processes may lack some of the names."""
        return values

    def collect(self, state: State) -> None:
        """Bring the private parameters of all devices to the first process."""

    @contextmanager
    def together(self) -> Iterator[None]:
        """If one process refuses something, all processes do, with the same message."""
        yield

    def agree(self, value: T) -> T:
        """The value that the first process has."""
        return value

    @contextmanager
    def files(self, folder: Path, names: Iterable[str]) -> Iterator[Path]:
        """A folder with these files of the first process's `folder`: that folder itself, or a copy on machines that do
        not see it. The first process says which files; a name may be a pattern."""
        yield folder


ALONE = Group()
