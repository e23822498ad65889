"""State files, in the safetensors format. A state may take more than half of the memory, so it is never copied: tensors
are written directly from memory, and read directly into the arrays that keep them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from federec.cohort.layers import Params
from federec.cohort.memory import mapped, too_large
from federec.files import cannot_read

_TYPES = {"F64": np.float64, "F32": np.float32, "I64": np.int64, "I32": np.int32, "BOOL": np.bool_}
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}


def pieces(tensors: Params) -> Iterator[bytes | memoryview]:
    """The content of a file with these tensors, in pieces: length of the header, header, one tensor after the other."""
    arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}
    ordered = sorted(arrays.items(), key=lambda pair: (-pair[1].itemsize, pair[0]))  # so that all are aligned
    header, end = {}, 0
    for name, array in ordered:
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype], "shape": array.shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    yield from (array.data for _, array in ordered)


def read(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a file, each in an array of its own. A damaged file raises ValueError, KeyError or TypeError."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = int.from_bytes(file.read(8), "little") + 8
            if start > size:
                raise ValueError("the header is cut off")
            header = json.loads(file.read(start - 8))
            arrays = {}
            for name, entry in header.items():
                (begin, end), kind = entry["data_offsets"], np.dtype(_TYPES[entry["dtype"]])
                if start + end > size or end - begin != math.prod(entry["shape"]) * kind.itemsize:
                    raise ValueError(f"{name} is cut off")
                shape = tuple(entry["shape"])
                arrays[name] = mapped(shape, kind) if too_large(shape, kind) else np.empty(shape, kind)
                file.seek(start + begin)
                file.readinto(arrays[name].reshape(-1).view(np.uint8))  # type: ignore[arg-type]
            return arrays
    except OSError as error:
        raise cannot_read(path, error) from None
