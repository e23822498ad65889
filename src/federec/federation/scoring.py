"""The item rows that a device can rank with (PFedRec, question 2): its own, the server's, another device's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from federec.cohort.cohort import Cohort
from federec.cohort.draw import Devices
from federec.cohort.layers import SERVER, Params
from federec.federation.state import State
from federec.methods.base import DeviceMethod


def score_global(
    method: DeviceMethod, state: State, users: Tensor, items: Tensor, devices: Devices | None = None
) -> Tensor:
    """Scores [C, K] of items [C, K] with the server's rows, each user's private parameters and, with `devices`, each
    user's own history."""
    p: Params = {name: value[users] for name, value in state.private.items()}
    for name, param in method.shared().items():
        value = state.shared[name]
        p[name] = value[items] if param.rows else value.expand(len(users), *value.shape)
    owner = torch.arange(len(users), device=users.device)[:, None]
    for name, store in state.stores.items():
        p[name] = store.take(users, owner, items)
    if devices is not None:
        p |= method.recall(state.shared, devices.history(users), items)
    return method.score(p)


def score_own(method: DeviceMethod, cohort: Cohort, state: State, items: Tensor) -> Tensor:
    """Scores with each device's own tuned rows, and with the server's rows, as the device received them, for items that
    it did not tune. `state` has the shared parameters that the round began with and the new private ones."""
    owner = torch.arange(len(cohort), device=items.device)[:, None]
    return _score_tuned(method, cohort, state, items, cohort.rows.find(owner, items), cohort.tables)


@dataclass
class Neighbour:
    """Scores for each device with the rows of the one before it in the round's order of stacking: a random other device
    of similar activity, whatever the chunk size. The first device has none before it and uses the server's rows."""

    ids: Tensor | None = None
    tables: Params | None = None

    def score(self, method: DeviceMethod, cohort: Cohort, state: State, items: Tensor) -> Tensor:
        """Scores [C, K] with the neighbour's rows; remembers the last device for the next cohort."""
        rows = cohort.rows
        owner = torch.arange(len(cohort), device=items.device)[:, None] - 1
        slots = rows.find(owner, items)
        tables = cohort.tables
        if self.ids is not None and self.tables is not None:  # device 0's neighbour was in the previous cohort
            found = (self.ids[None] == items[0][:, None]).int()
            at = torch.where(found.any(1), found.argmax(1), -1)
            slots[0] = torch.where(at >= 0, at + len(rows), -1)
            tables = {name: torch.cat([table, self.tables[name]]) for name, table in tables.items()}
        mine = rows.owner == len(cohort) - 1
        self.ids = rows.ids[mine]
        self.tables = {name: table[mine] for name, table in cohort.tables.items()}
        return _score_tuned(method, cohort, state, items, slots, tables)


def _score_tuned(
    method: DeviceMethod, cohort: Cohort, state: State, items: Tensor, slots: Tensor, tables: Params
) -> Tensor:
    """Score with row `slots` of the tables where there is one (>= 0), else with the rows sent to the device."""
    p: Params = dict(cohort.params)
    tuned = (slots >= 0)[:, :, None]
    for name, param in method.shared().items():
        if param.rows:
            p[name + SERVER] = state.shared[name][items]
            p[name] = torch.where(tuned, tables[name][slots.clamp(min=0)], p[name + SERVER])
    for name, store in state.stores.items():
        owner = torch.arange(len(cohort), device=items.device)[:, None]
        p[name] = store.take(cohort.users, owner, items)
    if cohort.history is not None:
        p |= method.recall(state.shared, cohort.history, items)
    return method.score(p)
