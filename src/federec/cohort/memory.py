"""Arrays for what all devices of a simulation keep: in memory or, where they are too large for it, in temporary files.

A file is memory-mapped: its numbers are read and written like others, and the operating system loads what is used. It
has no name, so it disappears with the process, however that ends.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from federec.errors import UserError

FRACTION = 0.25
"""Fraction of the machine's memory that one array may take; a larger one goes to a file."""


_HUGE = 1 << 22
"""Bytes from which on memory is worth getting in huge pages."""


def too_large(shape: tuple[int, ...], dtype: DTypeLike) -> bool:
    """Whether an array of this size belongs in a file."""
    return _bytes(shape, dtype) > _limit()


def _limit() -> int:
    """Bytes from which on an array belongs in a file."""
    return int(FRACTION * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def nameless() -> IO[bytes]:
    """A new file that disappears when it is closed."""
    return tempfile.TemporaryFile()


def mapped(shape: tuple[int, ...], dtype: DTypeLike, file: IO[bytes] | None = None) -> NDArray[Any]:
    """An array in a new file, or in a given one, whose content it keeps. New elements are 0."""
    file, size = file or nameless(), _bytes(shape, dtype)
    try:
        file.truncate(size)
        if hasattr(os, "posix_fallocate"):  # a full disk must show now: a write to mapped memory cannot report it
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        where = f"{tempfile.gettempdir()}: {error.strerror}"
        raise UserError(
            f"{where}; the devices' parameters take {size / 2**30:.1f} GiB; set TMPDIR to a folder with enough space"
        ) from None
    return np.memmap(file, dtype, "r+", shape=shape)


def untouched(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Zeros that take no memory before they are used. What uses them, in many threads at once, gets it from the
    operating system; NumPy would have touched all of it in one thread before."""
    size = _bytes(shape, dtype)
    pages = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype, math.prod(shape)).reshape(shape)


def spread(value: Tensor, devices: int) -> Tensor:
    """A copy of a value for each device, stacked."""
    return duplicate(value.expand(devices, *value.shape))


def duplicate(value: Tensor) -> Tensor:
    """A contiguous copy. A large one is in huge pages: to get ordinary ones takes longer than to fill them."""
    if value.device.type == "cpu":
        shape, dtype = value.shape, value.numpy().dtype
        if too_large(shape, dtype):
            return torch.from_numpy(mapped(shape, dtype)).copy_(value)
        if _bytes(shape, dtype) >= _HUGE:
            return torch.from_numpy(untouched(shape, dtype)).copy_(value)
    return value.clone(memory_format=torch.contiguous_format)


class Arena:
    """A table that grows at its end. On the CPU the operating system extends it in place, in memory or in a file, so
    that a large table never exists twice."""

    def __init__(self, array: NDArray[Any], device: torch.device) -> None:
        self._array = array if array.flags.owndata or isinstance(array, np.memmap) else array.copy()
        self._file: IO[bytes] | None = None
        self._whole: NDArray[Any] | None = None
        """Addresses for all that it may become in memory, of which the table is the beginning."""
        self.tensor = torch.from_numpy(self._array).to(device)

    def copy(self, length: int) -> Arena:
        """A copy of the first `length` rows, on the same torch device."""
        other = Arena(self._array[:0].copy(), self.tensor.device)
        other.reserve(length, length if self._whole is None else len(self._whole))
        other.tensor[:] = self.tensor[:length]
        return other

    def reserve(self, length: int, most: int) -> None:
        """Reserve at least `length` rows. A table that grows becomes at least a quarter longer, but not over `most`."""
        old = self.tensor
        if length <= len(old):
            return
        shape = (min(max(length, len(old) * 5 // 4), most), *old.shape[1:])
        if old.device.type == "cpu":
            self._lengthen(shape, most)
            self.tensor = torch.from_numpy(self._array)
        else:
            self.tensor = old.new_zeros(shape)
            self.tensor[: len(old)] = old

    def _lengthen(self, shape: tuple[int, ...], most: int) -> None:
        old, dtype = self._array, self._array.dtype
        if self._file is not None:
            self._array = mapped(shape, dtype, self._file)
        elif too_large(shape, dtype) or isinstance(old, np.memmap):
            self._file = nameless()
            self._array = mapped(shape, dtype, self._file)
            self._array[: len(old)] = old
            self._whole = None
        elif len(old) and self._whole is None:
            old.resize(shape, refcheck=False)
        else:
            if self._whole is None or len(self._whole) < shape[0]:
                each = max(1, _bytes(shape[1:], dtype))
                self._whole = untouched((min(most, max(shape[0], _limit() // each)), *shape[1:]), dtype)
                self._whole[: len(old)] = old
            self._array = self._whole[: shape[0]]


def _bytes(shape: tuple[int, ...], dtype: DTypeLike) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize
