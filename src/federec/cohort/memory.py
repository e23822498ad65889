"""Room for what all devices of a simulation keep: in memory, or, where that is too small for it, in a temporary file.

A file is mapped: its numbers are read and written like others, and the operating system brings in what is used. It has
no name, so it is gone with the process, however that ends.
"""

from __future__ import annotations

import math
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


def too_large(shape: tuple[int, ...], dtype: DTypeLike) -> bool:
    """Whether such an array belongs in a file."""
    return _bytes(shape, dtype) > FRACTION * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def nameless() -> IO[bytes]:
    """A new file that is gone when it is closed."""
    return tempfile.TemporaryFile()


def mapped(shape: tuple[int, ...], dtype: DTypeLike, file: IO[bytes] | None = None) -> NDArray[Any]:
    """An array in a file, a new one or, with what it holds, a given one. What is new in it is 0."""
    file, size = file or nameless(), _bytes(shape, dtype)
    try:
        file.truncate(size)
        if hasattr(os, "posix_fallocate"):  # now, since a full disk cannot be told of when it is written to
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        where = f"{tempfile.gettempdir()}: {error.strerror}"
        raise UserError(
            f"{where}; what devices keep takes {size / 2**30:.1f} GiB: set TMPDIR to where that fits"
        ) from None
    return np.memmap(file, dtype, "r+", shape=shape)


def spread(value: Tensor, devices: int) -> Tensor:
    """A copy of a value for each of so many devices, stacked."""
    return duplicate(value.expand(devices, *value.shape))


def duplicate(value: Tensor) -> Tensor:
    """The same numbers once more, next to each other."""
    if value.device.type != "cpu" or not too_large(value.shape, value.numpy().dtype):
        return value.clone(memory_format=torch.contiguous_format)
    return torch.from_numpy(mapped(value.shape, value.numpy().dtype)).copy_(value)


class Arena:
    """A table that grows at its end. On the CPU the operating system lengthens it in place, in memory or in a file:
    large ones never exist twice."""

    def __init__(self, array: NDArray[Any], place: torch.device) -> None:
        self._array = array if array.flags.owndata or isinstance(array, np.memmap) else array.copy()
        self._file: IO[bytes] | None = None
        self.tensor = torch.from_numpy(self._array).to(place)

    def copy(self, length: int) -> Arena:
        """Another with the first `length` rows, in the same place."""
        other = Arena(self._array[:0].copy(), self.tensor.device)
        other.reserve(length, length)
        other.tensor[:] = self.tensor[:length]
        return other

    def reserve(self, length: int, most: int) -> None:
        """At least so many rows; where they grow a quarter more than there were, up to `most`."""
        old = self.tensor
        if length <= len(old):
            return
        shape = (min(max(length, len(old) * 5 // 4), most), *old.shape[1:])
        if old.device.type == "cpu":
            self._lengthen(shape)
            self.tensor = torch.from_numpy(self._array)
        else:
            self.tensor = old.new_zeros(shape)
            self.tensor[: len(old)] = old

    def _lengthen(self, shape: tuple[int, ...]) -> None:
        old, dtype = self._array, self._array.dtype
        if self._file is not None:
            self._array = mapped(shape, dtype, self._file)
        elif too_large(shape, dtype) or not old.flags.owndata:  # only its owner may lengthen memory
            self._file = nameless()
            self._array = mapped(shape, dtype, self._file)
            self._array[: len(old)] = old
        else:
            old.resize(shape, refcheck=False)


def _bytes(shape: tuple[int, ...], dtype: DTypeLike) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize
