"""The threads that CPU kernels run in, how they share the users, and memory that they use again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from federec.cohort.draw import Devices
from federec.kernels.cpu import Parts

T = TypeVar("T")

_before: ContextVar[int] = ContextVar("threads that torch had", default=0)


def threads() -> int:
    """How many threads a kernel runs in: as many as torch has, or had before `one_torch_thread`."""
    return _before.get() or torch.get_num_threads()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Torch works in one thread, kernels in as many as before. Torch's other threads would spin for some milliseconds
    after each operation, on cores that kernels use."""
    now = torch.get_num_threads()
    before = _before.set(threads())
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(now)
        _before.reset(before)


@contextmanager
def all_torch_threads() -> Iterator[None]:
    """Within `one_torch_thread`, torch works in all threads again: for long operations."""
    now = torch.get_num_threads()
    torch.set_num_threads(threads())
    try:
        yield
    finally:
        torch.set_num_threads(now)


_limiting = threading.Lock()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Kernels that work within it multiply matrices in their own threads. BLAS would share a large product among
    threads of its own, which then wait in loops for more to do, on cores that kernels need. It has one setting for the
    whole process: where several callers overlap, the first one sets it, and sets it back when it leaves."""
    if not _limiting.acquire(blocking=False):
        yield
        return
    try:
        with _blas().limit(limits=1):
            yield
    finally:
        _limiting.release()


@lru_cache(1)
def _blas() -> ThreadpoolController:
    """The libraries that multiply matrices for NumPy and, once it is loaded, for kernels."""
    import_module("scipy.linalg.cython_blas")
    return ThreadpoolController().select(user_api="blas")


@lru_cache(1)
def _pool(count: int) -> ThreadPoolExecutor:
    """Threads are kept: to start sixteen takes milliseconds, as long as some kernels. In each of them torch has one
    thread."""
    return ThreadPoolExecutor(count, "kernel", _begin)


def _begin() -> None:
    """Torch gives a thread its number of threads when that first uses torch: the number that was set last anywhere. So
    it is used first, and then set."""
    torch.get_num_threads()
    torch.set_num_threads(1)


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not come along


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Call `work` with 0, 1, ..., count - 1, each in a thread of its own; with 0 in this one."""
    pool = _pool(max(count, threads()) - 1) if count > 1 else None  # the same for any count: threads are kept
    others = [pool.submit(copy_context().run, work, number) for number in range(1, count)] if pool else []
    try:
        work(0)
    finally:
        wait(others)  # they may work in memory of the caller
    for other in others:
        other.result()


def aside(work: Callable[[], T]) -> Callable[[], T]:
    """Begin `work` in another thread, if there are several; returns a function that waits for its result."""
    if threads() > 1:
        return _pool(threads() - 1).submit(copy_context().run, work).result
    done = work()
    return lambda: done


def on_threads(ptr: NDArray[np.int64], kernel: Callable[[Parts], None]) -> None:
    """Call a kernel, which lets go of Python's lock, in all threads, which take the parts in turn. `ptr`: where each
    part begins."""
    count = len(ptr) - 1
    shared = Parts(ptr, np.zeros(1, np.int64), np.zeros((count, 8), np.int64))
    in_threads(min(threads(), count), lambda _: kernel(shared))


def in_slices(length: int, work: Callable[[slice], object], least: int = 1) -> None:
    """Call `work`, which lets go of Python's lock, with slices of a length, one for each thread. They have at least
    `least` places, unless there are fewer."""
    count = max(1, min(threads(), length // max(1, least)))
    ends = [length * number // count for number in range(count + 1)]
    in_threads(count, lambda number: work(slice(ends[number], ends[number + 1])))


class Dealt(NamedTuple):
    """Users in parts."""

    order: NDArray[np.int64]
    """Users, part by part."""
    ptr: NDArray[np.int64]
    """Where each part begins."""


def deal(costs: NDArray[np.int64], count: int, least: int, most: int) -> Dealt:
    """Cut users, sorted by falling cost, into parts for `count` threads to take. Half of them make one part for each
    thread, a quarter the next ones, and so on: threads that were slower so far take fewer of the small parts at the
    end. All parts have users of all costs, so what a user costs beside its samples does not matter. There are at most
    so many parts for each thread, and only one where others would cost less than `least`. They only depend on the
    costs and the number of threads: a sum over parts is the same in every run."""
    total = int(costs.sum())
    halvings = 0
    while halvings < most - 1 and total >> (halvings + 1) >= count * least:
        halvings += 1
    turn, thread = np.divmod(np.arange(len(costs)), count)  # each thread gets one user a turn
    size = _halved(turn, halvings)
    back = turn >> np.minimum(size + 1, halvings) & 1 == 1  # in every second turn the last thread comes first
    part = size * count + np.where(back, count - 1 - thread, thread)
    ends = np.cumsum(np.bincount(part, minlength=(halvings + 1) * count))
    return Dealt(np.argsort(part, kind="stable"), np.concatenate([[0], ends]))


def _halved(turns: NDArray[np.int64], halvings: int) -> NDArray[np.int64]:
    """0 for every second turn, 1 for half of the others, 2 for half of the rest, ...; for all that are left, the number
    of halvings."""
    size = np.zeros_like(turns)
    for halving in range(1, halvings + 1):
        size += (turns + 1) % (1 << halving) == 0
    return size


def even_parts(count: int) -> NDArray[np.int64]:
    """The same of users who cost about the same, where nothing is summed."""
    size = max(1, count // (32 * threads()))
    return np.append(np.arange(0, max(count, 1), size), count)


def lend(devices: Devices, make: Callable[..., Any], *sizes: Any) -> Any:
    """Memory that `make` makes for these sizes, as its last user left it. Fresh memory costs more than what kernels do
    in it: the operating system hands it out page by page, to one thread at a time."""
    try:
        return devices.spare[make, sizes].pop()
    except (KeyError, IndexError):
        return make(*sizes)


def give_back(devices: Devices, memory: Any, make: Callable[..., Any], *sizes: Any) -> None:
    """Memory that was lent is free again."""
    devices.spare.setdefault((make, sizes), []).append(memory)


@contextmanager
def borrowed(devices: Devices, make: Callable[..., Any], *sizes: Any) -> Iterator[Any]:
    """Memory that is lent meanwhile; after an error it is not given back, since it may be in any state."""
    memory = lend(devices, make, *sizes)
    yield memory
    give_back(devices, memory, make, *sizes)
