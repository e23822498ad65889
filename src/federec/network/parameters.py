"""What a device has learned, as bytes: one user's private parameters, and the shared ones that reached the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from safetensors.numpy import load, save
from torch import Tensor

from federec.cohort.layers import Params
from federec.cohort.rows import look_up
from federec.errors import UserError
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.stages.quantise import decode, encode

FULL = 32
"""Bits of a value that is not quantised."""
_EXPONENTS = "exponents:"


def start(method: DeviceMethod, sizes: Sequence[int], devices: int, seed: int) -> State:
    """What devices begin with, where the catalogue grew in these steps."""
    state = State.start(method, sizes[0], devices, seed)
    for n_items in sizes[1:]:
        state = state.grown(method, n_items, seed)
    return state


def take(state: State, user: int) -> bytes:
    """One user's private part of a state."""
    own = {f"private:{name}": value[user] for name, value in state.private.items()}
    for name, store in state.stores.items():
        own[f"ids:{name}"], own[f"rows:{name}"] = store.own(user)
    return save({name: value.contiguous().numpy() for name, value in own.items()})


def put(state: State, user: int, taken: bytes) -> None:
    """Put what was taken back into a state."""
    own = {name: torch.from_numpy(value) for name, value in load(taken).items()}
    wanted = {f"private:{name}" for name in state.private}
    wanted |= {f"{part}:{name}" for name in state.stores for part in ("ids", "rows")}
    if own.keys() != wanted or any(v.shape[1:] != own[f"private:{n}"].shape for n, v in state.private.items()):
        raise UserError("the run's method or its settings have changed under the same name; start a new run")
    for name, value in state.private.items():
        value[user] = own[f"private:{name}"]
    for name, store in state.stores.items():
        store.give(user, own[f"ids:{name}"], own[f"rows:{name}"])


@dataclass(frozen=True)
class Payload:
    """Parameters that travel: the rows of some items, and whole layers."""

    ids: Tensor
    """Item codes, ascending."""
    rows: Params
    """Item table -> [len(ids), width]."""
    layers: Params = field(default_factory=dict)
    bits: int = FULL
    """Bits of a value on the wire; with 8 or 16 the values are quantised."""

    @staticmethod
    def nothing() -> Payload:
        return Payload(torch.zeros(0, dtype=torch.int64), {})

    def merged(self, newer: Payload) -> Payload:
        """With newer rows in place of older ones, and the newer layers."""
        if not len(self.ids) or not newer.rows:
            return newer if not len(self.ids) else Payload(self.ids, self.rows, newer.layers)
        ids = torch.cat([self.ids, newer.ids]).unique()
        rows = {}
        for name, new in newer.rows.items():
            rows[name] = new.new_zeros(len(ids), new.shape[1])
            rows[name][look_up(ids, self.ids)] = self.rows[name]
            rows[name][look_up(ids, newer.ids)] = new
        return Payload(ids, rows, newer.layers)

    def shared(self, n_items: int) -> Params:
        """Whole tables, and layers; rows that are not here are zero."""
        tables = {}
        for name, rows in self.rows.items():
            tables[name] = rows.new_zeros(n_items, rows.shape[1])
            tables[name][self.ids] = rows
        return tables | self.layers

    def tensors(self) -> Params:
        """Flat, for a file."""
        rows = {f"rows:{name}": value.contiguous() for name, value in self.rows.items()}
        return {"ids": self.ids} | rows | {f"layers:{name}": value.contiguous() for name, value in self.layers.items()}

    def packed(self) -> Params:
        """Flat, for a message: quantised values as codes, with an exponent for each row and layer."""
        flat = self.tensors() | {"ids": self.ids.int()}
        for name in [name for name in flat if self.bits != FULL and name != "ids"]:
            layer = name.startswith("layers:")
            codes, exponents = encode(flat[name][None] if layer else flat[name], 8 if self.bits == 8 else 16)
            flat |= {name: codes[0] if layer else codes, _EXPONENTS + name: exponents}
        return flat

    @staticmethod
    def unpacked(tensors: Params) -> Payload:
        """From what was `packed`. Its values may still be anything; a ValueError or RuntimeError where it cannot be
        read."""
        for name in tensors:
            if not name.startswith(("rows:", "layers:", _EXPONENTS)) and name != "ids":
                raise ValueError("tensors of another kind")
        flat = {name: value for name, value in tensors.items() if not name.startswith(_EXPONENTS)}
        for name, exponents in tensors.items():
            of = name.removeprefix(_EXPONENTS)
            if of == name:
                continue
            if of not in flat or exponents.dtype != torch.int8 or flat[of].dtype not in (torch.int8, torch.int16):
                raise ValueError("exponents without codes")
            layer = of.startswith("layers:")
            values = decode(flat[of][None] if layer else flat[of], exponents)
            flat[of] = values[0] if layer else values
        if flat["ids"].dtype != torch.int32 or flat["ids"].dim() != 1:
            raise ValueError("item codes that are not 32-bit integers")
        return Payload.parse(flat | {"ids": flat["ids"].long()})

    @staticmethod
    def parse(tensors: Params) -> Payload:
        """From its `tensors`, whatever else is among them."""
        rows, layers = (
            {name.removeprefix(kind): tensor for name, tensor in tensors.items() if name.startswith(kind)}
            for kind in ("rows:", "layers:")
        )
        return Payload(tensors["ids"], rows, layers)
