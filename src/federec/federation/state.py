"""All parameters of a federation between two rounds: those of the server and those of every device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load, save
from torch import Tensor

from federec import streams
from federec.cohort.layers import ITEMS, Params
from federec.cohort.memory import duplicate, spread
from federec.cohort.optim import Adam
from federec.cohort.store import RowStore
from federec.errors import UserError
from federec.methods.base import DeviceMethod

_PLAIN = ("shared", "private", "server")


@dataclass
class State:
    """Shared parameters, and private ones stacked over all devices [N, ...]."""

    shared: Params
    private: Params = field(default_factory=dict)
    stores: dict[str, RowStore] = field(default_factory=dict)
    """Private item tables; a device keeps only the rows that it touched."""
    server: Params = field(default_factory=dict)
    """What the server keeps for itself between rounds."""

    @staticmethod
    def start(method: DeviceMethod, n_items: int, devices: int, seed: int, device: torch.device | str = "cpu") -> State:
        """Initial values, which depend only on the seed; all devices start with the same."""
        generator = torch.Generator().manual_seed(seed)
        shared = {name: p.start(n_items, generator, devices).to(device) for name, p in method.shared().items()}
        state = State(shared, server=method.server_start(shared))
        for name, param in method.private().items():
            value = param.start(n_items, generator).to(device)
            if param.rows:
                state.stores[name] = RowStore(value, devices)
                continue
            state.private[name] = spread(value, devices)
            if param.adam:
                moments = Adam.moments(value[None])
                state.private |= {f"{name}/{part}": spread(zeros[0], devices) for part, zeros in moments.items()}
        return state

    @property
    def private_bytes(self) -> int:
        """Memory that private parameters take."""
        return sum(value.nbytes for name, value in self.tensors().items() if not name.startswith("shared:"))

    def copy(self) -> State:
        """An independent copy."""
        return replace(self.begun(), shared={name: value.clone() for name, value in self.shared.items()})

    def begun(self) -> State:
        """What a round begins with that is played in this state: a copy of what it changes in place. Shared parameters
        are not copied, because the server replaces them by new ones."""
        return State(
            dict(self.shared),
            {name: duplicate(value) for name, value in self.private.items()},
            {name: store.copy() for name, store in self.stores.items()},
            {name: value.clone() for name, value in self.server.items()},
        )

    def grown(self, method: DeviceMethod, n_items: int, seed: int) -> State:
        """A copy with rows for new items at the end of every item table. Shared ones are the mean of all rows: training
        pushes most rows down, so with rows as they are drawn in the beginning, new items would stand above most others.
        Private ones are drawn, and depend only on the seed and `n_items`: every device has the same."""
        other, generator = self.copy(), torch.Generator().manual_seed(streams.seed_of(seed, n_items))
        for name, param in {**method.shared(), **method.private()}.items():
            if ITEMS in param.shape:
                raise UserError(f"'{method.name}' has a layer as wide as the catalogue; it cannot take new items")
            if not param.rows:
                continue
            old = other.shared[name] if name in other.shared else other.stores[name].start
            drawn = param.start(n_items - len(old), generator).to(old.device)  # also if unused: later draws follow it
            if name in other.shared:
                other.shared[name] = with_mean_rows(old, len(drawn))
            else:
                other.stores[name].start = torch.cat([old, drawn])
        memory = method.server_start(other.shared)
        for name, value in other.server.items():
            if name in memory:
                memory[name][tuple(map(slice, value.shape))] = value
            else:  # kept by a stage of the channel
                memory[name] = value
        other.server = memory
        return other

    def take(self, user: int) -> bytes:
        """One user's private part, for the vault of a device."""
        own = {f"private:{name}": value[user] for name, value in self.private.items()}
        for name, store in self.stores.items():
            own[f"ids:{name}"], own[f"rows:{name}"] = store.own(user)
        return save({name: value.contiguous().numpy() for name, value in own.items()})

    def put(self, user: int, taken: bytes) -> None:
        """Put what was taken back."""
        own = {name: torch.from_numpy(value) for name, value in load(taken).items()}
        wanted = {f"private:{name}" for name in self.private}
        wanted |= {f"{part}:{name}" for name in self.stores for part in ("ids", "rows")}
        if own.keys() != wanted or any(v.shape[1:] != own[f"private:{n}"].shape for n, v in self.private.items()):
            raise UserError("the run's method or its settings have changed under the same name; start a new run")
        for name, value in self.private.items():
            value[user] = own[f"private:{name}"]
        for name, store in self.stores.items():
            store.give(user, own[f"ids:{name}"], own[f"rows:{name}"])

    def part(self, users: Tensor) -> Params:
        """The private parameters of these devices, flat."""
        flat = {f"private:{name}": value[users] for name, value in self.private.items()}
        for name, store in self.stores.items():
            flat |= {f"store:{name}:{part}": value for part, value in store.part(users).items()}
        return flat

    def fill(self, users: Tensor, part: Params) -> None:
        """Set the private parameters of these devices to a `part` of another state."""
        for name, value in self.private.items():
            value[users] = part[f"private:{name}"].to(value)
        for name, store in self.stores.items():
            store.fill(
                users, {kind: part[f"store:{name}:{kind}"].to(store.device) for kind in ("counts", "ids", "rows")}
            )

    def tensors(self) -> Params:
        """Flat, for a file: `shared:NAME`, `private:NAME`, `server:NAME`, `store:NAME:PART`."""
        flat = {f"{kind}:{name}": value for kind in _PLAIN for name, value in getattr(self, kind).items()}
        for name, store in self.stores.items():
            flat |= {f"store:{name}:{part}": value for part, value in store.tensors().items()}
        return flat

    @staticmethod
    def of(flat: dict[str, NDArray[Any]], device: torch.device | str = "cpu") -> State:
        """The state with these `tensors`, on `device`. Private item tables may be large and are used without a copy."""
        state = State({})
        stores: dict[str, dict[str, NDArray[Any]]] = {}
        for key, value in flat.items():
            kind, name = key.split(":", 1)
            if kind == "store":
                name, part = name.rsplit(":", 1)
                stores.setdefault(name, {})[part] = value
            else:
                # A copy has the alignment of torch's own tensors: alignment can change the last bit of a product.
                # Mapped arrays are aligned already.
                copy = not isinstance(value, np.memmap)
                getattr(state, kind)[name] = torch.from_numpy(value).to(device, copy=copy)
        state.stores = {name: RowStore.of(parts, device) for name, parts in stores.items()}
        return state


def with_mean_rows(table: Tensor, count: int) -> Tensor:
    """An item table with so many more rows at its end, each the mean of the others."""
    return torch.cat([table, table.mean(0, keepdim=True).expand(count, *table.shape[1:])])
