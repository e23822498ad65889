"""Scale-out: the devices of a run are dealt out to several processes, which torchrun starts.

    torchrun --nproc-per-node 2 -m federec train ...

Every process has all data and plays the server. It owns a part of the devices, about equal in work, and holds no
private parameters of the others. Each process plays a round for its own devices, and one all-reduce adds up all that
the server needs: updates, bytes, losses, and the ranks of users who ranked with rows tuned in the round. Ranks made
with the server's new rows follow in a second, small all-reduce. The first process writes the run folder; private
parameters are sent to it only for a checkpoint.

Sums travel as 32-bit floats: counts are exact up to 2^24, other values to about seven digits.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from federec.cohort.layers import Params
from federec.errors import UserError
from federec.federation.state import State
from federec.runs.group import ALONE, Group
from federec.stages.distributed_noise import NOISED

PATIENCE = timedelta(minutes=5)
"""A process that does not answer for this long is lost."""

_CPU = torch.device("cpu")

T = TypeVar("T")
Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Shapes and types of named tensors."""


class Lost(UserError):
    """Another process of the run is gone."""


class Ranks(Group):
    """One of several processes, numbered by torchrun."""

    def __init__(self) -> None:
        self.rank, self.size, self.local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        self.owner = torch.zeros(0, dtype=torch.int64)

    def device(self, asked: str) -> str:
        if asked == "cpu":
            return asked
        if asked != "cuda":
            raise UserError(f"--device {asked} is one GPU for all processes; with --device cuda each takes its own")
        if self.local >= torch.cuda.device_count():
            raise UserError("there are more processes than GPUs; lower torchrun's --nproc-per-node")
        torch.cuda.set_device(self.local)
        return f"cuda:{self.local}"

    def deal(self, work: Tensor) -> None:
        # The heaviest first, to ranks 0, 1, ..., then back: the processes' work differs by at most one device.
        order = work.argsort(descending=True, stable=True)
        position = torch.arange(len(work), device=work.device)
        rank = position % self.size
        self.owner = torch.empty_like(order)
        self.owner[order] = torch.where(position // self.size % 2 == 0, rank, self.size - 1 - rank)

    def mine(self, users: Tensor) -> Tensor:
        return users[self.owner[users] == self.rank]

    def idle(self, users: Tensor) -> bool:
        return int(torch.bincount(self.owner[users], minlength=self.size).min()) == 0

    def sum(self, values: list[Params], idle: bool = False) -> list[Params]:
        device = self.owner.device
        if idle:
            values = _completed(values, self.size, device)
        tensors = [tensor for named in values for _, tensor in sorted(named.items())]
        whole = any(NOISED in named for named in values)  # large whole numbers, whose sum must be exact
        kind = torch.float64 if whole else torch.float32
        flat = torch.cat([tensor.to(device, kind).flatten() for tensor in tensors])
        with _watched():
            dist.all_reduce(flat)
        parts = iter(flat.split([tensor.numel() for tensor in tensors]))
        return [{name: next(parts).view_as(old).to(old) for name, old in sorted(named.items())} for named in values]

    def collect(self, state: State) -> None:
        for rank in range(1, self.size):
            users = (self.owner == rank).nonzero().squeeze(1)
            if self.rank == rank:
                _send(state.part(users))
            elif self.first:
                state.fill(users, _receive(rank))

    @contextmanager
    def together(self) -> Iterator[None]:
        said = None
        try:
            yield
        except UserError as error:
            said = str(error)
        everyone: list[str | None] = [None] * self.size
        with _watched():
            dist.all_gather_object(everyone, said)
        for rank, said in enumerate(everyone):
            if said is not None:
                raise UserError(f"process {rank}: {said}" if rank else said)

    def agree(self, value: T) -> T:
        held = [value]
        with _watched():
            dist.broadcast_object_list(held)
        return held[0]


@contextmanager
def joined() -> Iterator[Group]:
    """The group of this process: torchrun's, or only itself. The first process prints why something is refused."""
    if not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"} <= os.environ.keys():
        yield ALONE
        return
    group = Ranks()
    signal.signal(signal.SIGTERM, _told_to_stop)  # torchrun stops all processes when one has ended
    with _watched():
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=PATIENCE)
    try:
        yield group
    except UserError as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so that torchrun does not stop the others before they are done
        if group.first or isinstance(error, Lost):
            raise
        sys.exit(2)
    dist.destroy_process_group()  # only after a success: with a lost process there is no orderly end


def _told_to_stop(*_: Any) -> NoReturn:
    raise Lost("stopped, because another process of this run has ended")


@contextmanager
def _watched() -> Iterator[None]:
    """Report a process that is gone, or silent for too long, as lost."""
    try:
        yield
    except RuntimeError as error:
        reason = re.sub(r"^\[\S*\] ", "", str(error)).partition(". ")[0]  # gloo begins with a line of its source code
        raise Lost(f"another process of this run is lost ({reason.splitlines()[0][:160]})") from None


def _completed(values: list[Params], size: int, device: torch.device) -> list[Params]:
    """The values, with zeros for names that only other processes have."""
    everyone: list[list[Shapes]] = [[]] * size
    with _watched():
        dist.all_gather_object(everyone, [_shapes(named) for named in values])
    completed = []
    for named, same in zip(values, zip(*everyone, strict=True), strict=True):
        known = {name: shape for shapes in same for name, shape in shapes.items()}
        completed.append(_zeros(known, device) | named)
    return completed


def _send(values: Params) -> None:
    """Send to the first process."""
    with _watched():
        dist.send_object_list([_shapes(values)], 0, device=_CPU)
        for tensor in values.values():
            dist.send(tensor.to(_CPU).contiguous(), 0)


def _receive(rank: int) -> Params:
    """Receive what process `rank` sends."""
    shapes: list[Shapes] = [{}]
    with _watched():
        dist.recv_object_list(shapes, rank, device=_CPU)
        values = _zeros(shapes[0], _CPU)
        for tensor in values.values():
            dist.recv(tensor, rank)
    return values


def _shapes(values: Params) -> Shapes:
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in values.items()}


def _zeros(shapes: Shapes, device: torch.device) -> Params:
    return {name: torch.zeros(shape, dtype=kind, device=device) for name, (shape, kind) in shapes.items()}
