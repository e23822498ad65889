"""Parameters on their way: the shared ones that reach a device, and the changes that leave it. They are arrays, so that
a device needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = dict[str, Array]

FULL = 32
"""Bits of a value that is not quantised."""
_EXPONENTS = "exponents:"


@dataclass(frozen=True)
class Payload:
    """Parameters that travel: the rows of some items, and whole layers. Tensors are taken as arrays."""

    ids: Array
    """Item codes, ascending."""
    rows: Mapping[str, Array]
    """Item table -> [len(ids), width]."""
    layers: Mapping[str, Array] = field(default_factory=dict)
    bits: int = FULL
    """Bits of a value on the wire; with 8 or 16 the values are quantised."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", np.asarray(self.ids))
        for part in ("rows", "layers"):
            arrays = {name: np.asarray(value) for name, value in getattr(self, part).items()}
            object.__setattr__(self, part, arrays)

    @staticmethod
    def nothing() -> Payload:
        return Payload(np.zeros(0, np.int64), {})

    def merged(self, newer: Payload) -> Payload:
        """With newer rows in place of older ones, and the newer layers."""
        if not len(self.ids) or not newer.rows:
            return newer if not len(self.ids) else Payload(self.ids, self.rows, newer.layers)
        if np.array_equal(self.ids, newer.ids):
            return newer
        both = np.concatenate([self.ids, newer.ids])
        ids = np.unique(both, return_index=True)[0]  # without the index, NumPy loads 2 MB for masked arrays
        rows = {}
        for name, new in newer.rows.items():
            rows[name] = np.zeros((len(ids), new.shape[1]), new.dtype)
            rows[name][np.searchsorted(ids, self.ids)] = self.rows[name]
            rows[name][np.searchsorted(ids, newer.ids)] = new
        return Payload(ids, rows, newer.layers)

    def shared(self, n_items: int) -> Arrays:
        """Whole tables, and layers; rows that are not here are zero."""
        tables = {}
        for name, rows in self.rows.items():
            tables[name] = np.zeros((n_items, rows.shape[1]), rows.dtype)
            tables[name][self.ids] = rows
        return {**tables, **self.layers}

    def arrays(self) -> Arrays:
        """Flat, for a file."""
        rows = {f"rows:{name}": np.ascontiguousarray(value) for name, value in self.rows.items()}
        layers = {f"layers:{name}": np.ascontiguousarray(value) for name, value in self.layers.items()}
        return {"ids": self.ids, **rows, **layers}

    def packed(self) -> Arrays:
        """Flat, for a message: quantised values as codes, with an exponent for each row and layer."""
        flat = self.arrays() | {"ids": self.ids.astype(np.int32)}
        for name in [name for name in flat if self.bits != FULL and name != "ids"]:
            layer = name.startswith("layers:")
            codes, exponents = _encoded(flat[name][None] if layer else flat[name], 8 if self.bits == 8 else 16)
            flat |= {name: codes[0] if layer else codes, _EXPONENTS + name: exponents}
        return flat

    @staticmethod
    def unpacked(arrays: Arrays) -> Payload:
        """From what was `packed`. Its values may still be anything; a ValueError or RuntimeError where it cannot be
        read."""
        for name in arrays:
            if not name.startswith(("rows:", "layers:", _EXPONENTS)) and name != "ids":
                raise ValueError("arrays of another kind")
        flat = {name: value for name, value in arrays.items() if not name.startswith(_EXPONENTS)}
        for name, exponents in arrays.items():
            of = name.removeprefix(_EXPONENTS)
            if of == name:
                continue
            if of not in flat or exponents.dtype != np.int8 or flat[of].dtype not in (np.int8, np.int16):
                raise ValueError("exponents without codes")
            layer = of.startswith("layers:")
            values = _decoded(flat[of][None] if layer else flat[of], exponents)
            flat[of] = values[0] if layer else values
        if flat["ids"].dtype != np.int32 or flat["ids"].ndim != 1:
            raise ValueError("item codes that are not 32-bit integers")
        return Payload.parse(flat | {"ids": flat["ids"].astype(np.int64)})

    @staticmethod
    def parse(arrays: Arrays) -> Payload:
        """From its `arrays`, whatever else is among them."""
        rows, layers = (
            {name.removeprefix(kind): array for name, array in arrays.items() if name.startswith(kind)}
            for kind in ("rows:", "layers:")
        )
        return Payload(arrays["ids"], rows, layers)


def _encoded(values: Array, bits: Literal[8, 16]) -> tuple[Array, Array]:
    """Codes of values, with an exponent for each row; by the stage `quantise`, which works in torch."""
    from federec.lazy import torch
    from federec.stages.quantise import encode

    codes, exponents = encode(torch.from_numpy(values), bits)
    return codes.numpy(), exponents.numpy()


def _decoded(codes: Array, exponents: Array) -> Array:
    """The values of such codes."""
    from federec.lazy import torch
    from federec.stages.quantise import decode

    values: Array = decode(torch.from_numpy(codes), torch.from_numpy(exponents)).numpy()
    return values
