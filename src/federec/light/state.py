"""What the users of a device without torch keep from round to round: what `federation.State` has of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from federec import streams
from federec.errors import UserError
from federec.light.start import Floats, Generator
from federec.methods.base import DeviceMethod


@dataclass(frozen=True)
class Held:
    """The rows of a private item table that one user has touched."""

    ids: NDArray[np.int32]
    """Ascending."""
    rows: Floats

    def plus(self, ids: NDArray[np.int64], rows: Floats) -> Held:
        """With other rows of these items."""
        both = np.concatenate([self.ids, ids.astype(np.int32)])
        every = np.unique(both, return_index=True)[0]  # without the index, NumPy loads 2 MB for masked arrays
        merged = np.empty((len(every), rows.shape[1]), np.float32)
        merged[np.searchsorted(every, self.ids)] = self.rows
        merged[np.searchsorted(every, ids)] = rows
        return Held(every, merged)


@dataclass(frozen=True)
class Store:
    """A private item table: rows that a user has not touched are those of `start`."""

    start: Floats
    held: dict[int, Held] = field(default_factory=dict)
    """By user."""

    def rows(self, user: int, ids: NDArray[np.int64]) -> Floats:
        """A user's rows of some items."""
        rows, held = self.start[ids], self.of(user)
        place = np.full(len(self.start), -1, np.int32)
        place[held.ids] = np.arange(len(held.ids))
        touched = place[ids] >= 0
        rows[touched] = held.rows[place[ids[touched]]]
        return rows

    def scores(self, user: int, weight: Floats) -> Floats:
        """A user's rows of all items times a weight."""
        scores: Floats = self.start @ weight
        scores[self.of(user).ids] = self.of(user).rows @ weight
        return scores

    def of(self, user: int) -> Held:
        return self.held.get(user) or Held(np.zeros(0, np.int32), self.start[:0])


@dataclass
class LightState:
    """Private parameters, stacked over the users of a device [N, ...]."""

    private: dict[str, Floats] = field(default_factory=dict)
    stores: dict[str, Store] = field(default_factory=dict)

    @staticmethod
    def start(method: DeviceMethod, sizes: Sequence[int], users: int, seed: int) -> LightState:
        """Initial values, where the catalogue grew in these steps; as `federation.State` begins and grows."""
        state, generator = LightState(), Generator(seed)
        for param in method.shared().values():
            generator.skip(param, sizes[0])
        for name, param in method.private().items():
            value = generator.values(param, sizes[0])
            if param.rows:
                state.stores[name] = Store(value)
            else:
                state.private[name] = np.repeat(value[None], users, 0)
        for before, n_items in pairwise(sizes):
            generator = Generator(streams.seed_of(seed, n_items))
            for param in method.shared().values():
                if param.rows:
                    generator.skip(param, n_items - before)
            for name, store in state.stores.items():
                more = generator.values(method.private()[name], n_items - before)
                state.stores[name] = replace(store, start=np.concatenate([store.start, more]))
        return state

    def copy(self) -> LightState:
        stores = {name: replace(store, held=dict(store.held)) for name, store in self.stores.items()}
        return LightState({name: value.copy() for name, value in self.private.items()}, stores)

    def take(self, user: int) -> bytes:
        """One user's part, for the vault."""
        own = {f"private:{name}": value[user] for name, value in self.private.items()}
        for name, store in self.stores.items():
            own |= {f"ids:{name}": store.of(user).ids, f"rows:{name}": store.of(user).rows}
        return save({name: np.ascontiguousarray(value) for name, value in own.items()})

    def put(self, user: int, taken: bytes) -> None:
        """Put what was taken back."""
        own = load(taken)
        wanted = {f"private:{name}" for name in self.private}
        wanted |= {f"{part}:{name}" for name in self.stores for part in ("ids", "rows")}
        if own.keys() != wanted or any(v.shape[1:] != own[f"private:{n}"].shape for n, v in self.private.items()):
            raise UserError("the run's method or its settings have changed under the same name; start a new run")
        for name, value in self.private.items():
            value[user] = own[f"private:{name}"]
        for name, store in self.stores.items():
            store.held[user] = Held(own[f"ids:{name}"], own[f"rows:{name}"])
