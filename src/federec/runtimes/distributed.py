"""Scale-out: the devices of a run are dealt out to several processes, which torchrun starts.

    torchrun --nproc-per-node 2 -m federec train ...

Every process has all data and plays the server. It owns a part of the devices, about equal in work, and holds no
private parameters of the others. Each process plays a round for its own devices, and one sum over the processes adds
up all that the server needs: updates, bytes, losses, and the ranks of users who ranked with rows tuned in the round. Of
a large item table only changed rows are sent where that is less. Ranks made with the server's new rows follow in a
second, small sum. The first process writes the run folder; private parameters are sent to it only for a checkpoint.

Sums travel as 32-bit floats: counts are exact up to 2^24, other values to about seven digits.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, NoReturn, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from federec.cohort.layers import Params
from federec.errors import UserError
from federec.federation.state import State
from federec.runs.group import ALONE, Group
from federec.stages.distributed_noise import NOISED

PATIENCE = timedelta(minutes=5)
"""A process that does not answer for this long is lost."""

_CPU = torch.device("cpu")

_PIECE = 1 << 26
"""Bytes of a file that are sent at a time."""

_TABLE = 1 << 16
"""Values from which on it pays to ask the processes which rows of a table they changed."""

T = TypeVar("T")
Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Shapes and types of named tensors."""


class Lost(UserError):
    """Another process of the run is gone."""


class Ranks(Group):
    """One of several processes, numbered by torchrun."""

    def __init__(self) -> None:
        self.rank, self.size, self.local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        self.restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) > 0
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
        sums = iter(_added([tensor.to(device, kind) for tensor in tensors], self.size))
        return [{name: next(sums).to(old) for name, old in sorted(named.items())} for named in values]

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
    def files(self, folder: Path, names: Iterable[str]) -> Iterator[Path]:
        stamps = {name: _stamp(folder / name) for name in _found(folder, names)}
        theirs = self.agree(stamps)
        everyone: list[bool] = [False] * self.size
        with _watched():
            dist.all_gather_object(everyone, all(_stamp(folder / name) == stamp for name, stamp in theirs.items()))
        if all(everyone):
            yield folder
            return
        with TemporaryDirectory(prefix="federec-") as scratch:
            for name, stamp in theirs.items():
                self._copy(folder / name, None if everyone[self.rank] else Path(scratch, name), stamp.size)
            yield folder if everyone[self.rank] else Path(scratch)

    def _copy(self, path: Path, to: Path | None, size: int) -> None:
        """Send a file of the first process to all; those that give a path write it there."""
        if to is not None:
            to.parent.mkdir(parents=True, exist_ok=True)
        nowhere = Path(os.devnull)
        with (path if self.first else nowhere).open("rb") as source, (to or nowhere).open("wb") as copy:
            for start in range(0, size, _PIECE):
                piece = torch.empty(min(_PIECE, size - start), dtype=torch.uint8)
                if self.first:
                    source.readinto(piece.numpy().data)
                with _watched():
                    dist.broadcast(piece, 0)
                copy.write(piece.numpy().data)


def _found(folder: Path, names: Iterable[str]) -> list[str]:
    """The files with these names or patterns, relative to the folder."""
    paths = sorted(path for name in names for path in folder.glob(name) if path.is_file())
    return [str(path.relative_to(folder)) for path in paths]


class _Stamp(NamedTuple):
    """By which a file is known to be the same."""

    size: int
    changed: int
    """When, in nanoseconds."""


def _stamp(path: Path) -> _Stamp:
    """The stamp of a file; size -1 where there is none."""
    try:
        known = path.stat()
    except OSError:
        return _Stamp(-1, 0)
    return _Stamp(known.st_size, known.st_mtime_ns)


@contextmanager
def joined() -> Iterator[Group]:
    """The group of this process: torchrun's, or only itself. The first process prints why something is refused."""
    if not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"} <= os.environ.keys():
        yield ALONE
        return
    group = Ranks()
    signal.signal(signal.SIGTERM, _told_to_stop)  # torchrun stops all processes when one has ended
    with _watched():
        _connect()
    try:
        yield group
    except UserError as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so that torchrun does not stop the others before they are done
        if isinstance(error, Lost):
            raise  # with a lost process there is no orderly end
        dist.destroy_process_group()
        if group.first:
            raise
        sys.exit(2)
    dist.destroy_process_group()


def _connect() -> None:
    """Find the other processes."""
    store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
    store = PrefixStore(_meet(store, rank, size), store)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)


def _meet(store: Store, rank: int, size: int) -> str:
    """A name that exactly the processes of this start share. After a restart, torchrun's store still has the addresses
    of lost processes; under a new name nobody finds them. A process asks with a token that nobody had before, so that
    the first one answers only processes that are alive."""
    name = token = uuid4().hex
    if rank:
        store.set(f"asks {rank}", token)
        _wait(lambda: store.check([f"answer {token}"]))
        name = store.get(f"answer {token}").decode()
        store.set(f"{name} {rank}", "")
        return name

    def all_here() -> bool:
        for other in range(1, size):
            if store.check([f"asks {other}"]):
                store.set(f"answer {store.get(f'asks {other}').decode()}", name)
        return store.check([f"{name} {other}" for other in range(1, size)])

    _wait(all_here)
    return name


def _wait(ready: Callable[[], bool]) -> None:
    """Wait, in a way that a signal ends, until something holds."""
    end = time.monotonic() + PATIENCE.total_seconds()
    while not ready():
        if time.monotonic() > end:
            raise Lost("the other processes of this run did not start")
        time.sleep(0.05)


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


def _added(tensors: list[Tensor], size: int) -> list[Tensor]:
    """The sums over `size` processes, equal in all of them to the last bit. A table of which the processes changed few
    rows is not sent whole: each process sends the rows that it changed, and all add them in the order of the ranks.

    A ring of R processes has each send 2 (R - 1) / R times a whole table, or R - 1 times the rows of the process that
    changed most. With M rows of w values, and one more value for a row's number, rows are less if
    R rows (w + 1) < 2 M w.
    """
    rows = {at: _changed(tensor) for at, tensor in enumerate(tensors) if tensor.dim() == 2 and tensor.numel() >= _TABLE}
    sums: dict[int, Tensor] = {}
    if rows:
        most = torch.tensor([len(changed) for changed in rows.values()], device=tensors[0].device)
        with _watched():
            dist.all_reduce(most, dist.ReduceOp.MAX)
        for (at, changed), count in zip(rows.items(), most.tolist(), strict=True):
            length, width = tensors[at].shape
            if size * count * (width + 1) < 2 * length * width:
                sums[at] = _added_rows(tensors[at], changed, count, size)
    whole = {at: tensor for at, tensor in enumerate(tensors) if at not in sums}
    flat = torch.cat([tensor.flatten() for tensor in whole.values()])
    with _watched():
        dist.all_reduce(flat)
    totals = flat.split([tensor.numel() for tensor in whole.values()])
    sums |= {at: total.view_as(whole[at]) for at, total in zip(whole, totals, strict=True)}
    return [sums[at] for at in range(len(tensors))]


def _changed(table: Tensor) -> Tensor:
    """The rows of a table that are not all 0."""
    return (table != 0).any(1).nonzero().flatten()


def _added_rows(table: Tensor, changed: Tensor, most: int, size: int) -> Tensor:
    """The sum of the processes' tables, of each of which at most `most` rows are not 0."""
    if not most:
        return table
    padding = most - len(changed)  # all processes send as much; row 0 plus 0 is row 0
    ids = torch.cat([changed, changed.new_zeros(padding)]).int()
    rows = torch.cat([table[changed], table.new_zeros(padding, table.shape[1])])
    all_ids, all_rows = ([torch.empty_like(own) for _ in range(size)] for own in (ids, rows))
    with _watched():
        dist.all_gather(all_ids, ids)
        dist.all_gather(all_rows, rows)
    total = torch.zeros_like(table)
    for some, values in zip(all_ids, all_rows, strict=True):
        total.index_add_(0, some, values)
    return total


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
