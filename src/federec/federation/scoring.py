"""The item rows that a device can rank with (PFedRec, question 2): its own, the server's, another device's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from federec.cohort.cohort import Cohort
from federec.cohort.draw import Devices
from federec.cohort.layers import SERVER, Params
from federec.federation.state import State
from federec.methods.base import DeviceMethod

Score = Callable[[Tensor], Tensor]
"""Items [C, K] -> scores [C, K]; row c belongs to the c-th of the users at hand."""


class Ranking(Protocol):
    """Takes the scores of a few users at a time."""

    @property
    def whole(self) -> Tensor | None:
        """[n_users]: who is ranked against all items, nobody else is ranked; None: everybody, against a few items."""

    def add(self, users: Tensor, score: Score) -> None:
        """Ask for scores of these users and rank by them."""


def score_global(
    method: DeviceMethod, state: State, users: Tensor, items: Tensor, devices: Devices | None = None
) -> Tensor:
    """Scores [C, K] of items [C, K] with the server's rows, each user's private parameters and, with `devices`, each
    user's own history."""
    p: Params = {name: value[users] for name, value in state.private.items()}
    same = items.stride(0) == 0  # everybody scores the same items: their rows are looked up once
    for name, param in method.shared().items():
        value = state.shared[name]
        rows = value[items[0]] if param.rows and same else value
        p[name] = value[items] if param.rows and not same else rows.expand(len(users), *rows.shape)
    owner = torch.arange(len(users), device=users.device)[:, None]
    for name, store in state.stores.items():
        p[name] = store.take(users, owner, items)
    if devices is not None:
        p |= method.recall(state.shared, devices.history(users), items)
    return method.score(p)


def score_own(method: DeviceMethod, cohort: Cohort, state: State, items: Tensor, some: Tensor | None = None) -> Tensor:
    """Scores with each device's own tuned rows, and with the server's rows, as the device received them, for items that
    it did not tune. `state` has the shared parameters that the round began with and the new private ones. `some` are
    the places of the devices that score; all of the cohort if not given."""
    owner = torch.arange(len(cohort), device=items.device) if some is None else some
    slots = cohort.rows.find(owner[:, None], items)
    return _score_tuned(method, cohort, state, items, slots, cohort.tables, some)


def rank_own(ranks: Ranking, method: DeviceMethod, cohort: Cohort, state: State, size: int) -> None:
    """Rank the cohort's devices by those scores; against all items, `size` devices at a time."""
    if ranks.whole is None:
        ranks.add(cohort.users, partial(score_own, method, cohort, state))
        return
    for some in ranks.whole[cohort.users].nonzero().flatten().split(size):
        ranks.add(cohort.users[some], partial(score_own, method, cohort, state, some=some))


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
    method: DeviceMethod,
    cohort: Cohort,
    state: State,
    items: Tensor,
    slots: Tensor,
    tables: Params,
    some: Tensor | None = None,
) -> Tensor:
    """Score with row `slots` of the tables where there is one (>= 0), else with the rows sent to the device."""
    p, users, history = dict(cohort.params), cohort.users, cohort.history
    if some is not None:
        p, users = {name: value[some] for name, value in p.items()}, users[some]
        history = history and history.of(some)
    tuned = (slots >= 0)[:, :, None]
    for name, param in method.shared().items():
        if param.rows:
            p[name + SERVER] = state.shared[name][items]
            p[name] = torch.where(tuned, tables[name][slots.clamp(min=0)], p[name + SERVER])
    for name, store in state.stores.items():
        owner = torch.arange(len(users), device=items.device)[:, None]
        p[name] = store.take(users, owner, items)
    if history is not None:
        p |= method.recall(state.shared, history, items)
    return method.score(p)
