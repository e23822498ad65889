"""All parameters of a federation between two rounds: the server's, and every device's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
    """Private item tables, of which a device keeps only the rows it touched."""
    server: Params = field(default_factory=dict)
    """What the server itself remembers between rounds."""

    @staticmethod
    def start(method: DeviceMethod, n_items: int, devices: int, seed: int, place: torch.device | str = "cpu") -> State:
        """First values, a function of the seed alone; all devices start alike."""
        generator = torch.Generator().manual_seed(seed)
        shared = {name: p.start(n_items, generator, devices).to(place) for name, p in method.shared().items()}
        state = State(shared, server=method.server_start(shared))
        for name, param in method.private().items():
            value = param.start(n_items, generator).to(place)
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
        return State(
            {name: value.clone() for name, value in self.shared.items()},
            {name: duplicate(value) for name, value in self.private.items()},
            {name: store.copy() for name, store in self.stores.items()},
            {name: value.clone() for name, value in self.server.items()},
        )

    def grown(self, method: DeviceMethod, n_items: int, seed: int) -> State:
        """With rows for new items at the end of every item table; a function of the seed and of how many there are."""
        other, generator = self.copy(), torch.Generator().manual_seed((seed ^ n_items << 32) % (1 << 63))
        for name, param in {**method.shared(), **method.private()}.items():
            if ITEMS in param.shape:
                raise UserError(f"'{method.name}' has a layer as wide as the catalogue; it cannot take new items")
            if not param.rows:
                continue
            old = other.shared[name] if name in other.shared else other.stores[name].start
            table = torch.cat([old, param.start(n_items - len(old), generator).to(old.device)])
            if name in other.shared:
                other.shared[name] = table
            else:
                other.stores[name].start = table
        memory = method.server_start(other.shared)
        for name, value in other.server.items():
            memory[name][tuple(map(slice, value.shape))] = value
        other.server = memory
        return other

    def part(self, users: Tensor) -> Params:
        """What these devices keep to themselves, flat."""
        flat = {f"private:{name}": value[users] for name, value in self.private.items()}
        for name, store in self.stores.items():
            flat |= {f"store:{name}:{part}": value for part, value in store.part(users).items()}
        return flat

    def fill(self, users: Tensor, part: Params) -> None:
        """Take over what another state has of these devices."""
        for name, value in self.private.items():
            value[users] = part[f"private:{name}"].to(value)
        for name, store in self.stores.items():
            store.fill(
                users, {kind: part[f"store:{name}:{kind}"].to(store.place) for kind in ("counts", "ids", "rows")}
            )

    def tensors(self) -> Params:
        """Flat, for a file: `shared:NAME`, `private:NAME`, `server:NAME`, `store:NAME:PART`."""
        flat = {f"{kind}:{name}": value for kind in _PLAIN for name, value in getattr(self, kind).items()}
        for name, store in self.stores.items():
            flat |= {f"store:{name}:{part}": value for part, value in store.tensors().items()}
        return flat

    @staticmethod
    def of(flat: dict[str, NDArray[Any]], place: torch.device | str = "cpu") -> State:
        """The state whose `tensors` these are, in `place`. Private item tables, which may be large, are taken over."""
        state = State({})
        stores: dict[str, dict[str, NDArray[Any]]] = {}
        for key, value in flat.items():
            kind, name = key.split(":", 1)
            if kind == "store":
                name, part = name.rsplit(":", 1)
                stores.setdefault(name, {})[part] = value
            else:
                # A copy lies in memory as torch would have laid it: where numbers lie can change the last bit of a
                # product. Mapped ones lie well.
                copy = not isinstance(value, np.memmap)
                getattr(state, kind)[name] = torch.from_numpy(value).to(place, copy=copy)
        state.stores = {name: RowStore.of(parts, place) for name, parts in stores.items()}
        return state
