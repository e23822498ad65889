import pytest
import torch

from federec.cohort.draw import Devices
from federec.cohort.layers import SERVER
from federec.federation.device import MEMORY
from federec.federation.round import play
from federec.federation.scoring import Neighbour, score_global, score_own
from federec.federation.state import State

USERS, ITEMS, SEED = 12, 40, 4


class Played:
    """A round, with everything written out in plain dictionaries."""

    def __init__(self, method, split, memory=MEMORY):
        self.devices = devices = Devices.of(split, False)
        state = State.start(method, ITEMS, USERS, SEED)
        play(method, state, devices, torch.arange(USERS), SEED, 1)
        self.method, self.before, self.state = method, state.copy(), state
        self.tuned, self.params, self.order = {}, {}, []
        self.own, self.neighbour = torch.zeros(USERS, ITEMS), torch.zeros(USERS, ITEMS)
        neighbour = Neighbour()

        def observe(cohort):
            for row, (c, item) in enumerate(zip(cohort.rows.owner.tolist(), cohort.rows.ids.tolist(), strict=True)):
                rows = {name: table[row].clone() for name, table in cohort.tables.items()}
                self.tuned[int(cohort.users[c]), item] = rows
            for c, user in enumerate(cohort.users.tolist()):
                self.params[user] = {name: value[c].clone() for name, value in cohort.params.items()}
                self.order.append(user)
            items = torch.arange(ITEMS).expand(len(cohort), -1)
            self.own[cohort.users] = score_own(method, cohort, state, items)
            self.neighbour[cohort.users] = neighbour.score(method, cohort, state, items)

        play(method, state, devices, torch.arange(USERS), SEED, 2, observe, memory)

    def score(self, user, shared_row, layers, shared):
        """All items for one user; `shared_row(name, item)` says which row of a shared table to use."""
        p = {name: value[None] for name, value in layers.items()}
        for name, param in self.method.shared().items():
            if param.rows:
                p[name] = torch.stack([shared_row(name, item) for item in range(ITEMS)])[None]
        for name, store in self.state.stores.items():
            ids, rows = store.own(user)
            kept = dict(zip(ids.tolist(), rows, strict=True))
            p[name] = torch.stack([kept.get(item, store.start[item]) for item in range(ITEMS)])[None]
        history = self.devices.history(torch.tensor([user]))
        return self.method.score(p | self.method.recall(shared, history, torch.arange(ITEMS)[None]))[0]

    def with_rows_of(self, user, other):
        """Another device's tuned rows, the rows sent out where it has none."""

        def row(name, item):
            tuned = self.tuned.get((other, item))
            return tuned[name] if tuned else self.before.shared[name][item]

        tables = [name for name, param in self.method.shared().items() if param.rows]
        received = {name + SERVER: self.before.shared[name] for name in tables}
        return self.score(user, row, self.params[user] | received, self.before.shared)


@pytest.fixture(scope="module")
def split(random_split):
    return random_split(users=USERS, items=ITEMS)


@pytest.fixture(scope="module")
def played(device_method, split):
    return Played(device_method, split)


def test_own_uses_tuned_rows_and_the_rows_sent_out_elsewhere(played):
    expected = torch.stack([played.with_rows_of(user, user) for user in range(USERS)])
    torch.testing.assert_close(played.own, expected)


def test_neighbour_uses_the_rows_of_the_device_stacked_before(played):
    before = dict(zip(played.order, [None, *played.order], strict=False))
    expected = torch.stack([played.with_rows_of(user, before[user]) for user in range(USERS)])
    torch.testing.assert_close(played.neighbour, expected)


def test_global_uses_the_servers_new_rows_and_layers(played):
    method, state = played.method, played.state
    users = torch.tensor([7, 0, 3])
    items = torch.arange(ITEMS).flip(0).expand(3, -1)
    layers = {name: state.shared[name] for name, param in method.shared().items() if not param.rows}
    for row, user in enumerate(users.tolist()):
        own = {name: value[user] for name, value in state.private.items()}
        expected = played.score(user, lambda name, item: state.shared[name][item], {**own, **layers}, state.shared)
        torch.testing.assert_close(score_global(method, state, users, items, played.devices)[row].flip(0), expected)


def test_views_do_not_depend_on_the_size_of_cohorts(played, device_method, split):
    alone = Played(device_method, split, memory=1.0)
    assert alone.order == played.order
    torch.testing.assert_close(alone.own, played.own, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(alone.neighbour, played.neighbour, rtol=1e-4, atol=1e-4)


def test_the_three_views_of_pfedrec_differ(small, split):
    played = Played(small("pfedrec"), split)
    everyone, items = torch.arange(USERS), torch.arange(ITEMS).expand(USERS, -1)
    server = score_global(played.method, played.state, everyone, items)
    assert not torch.allclose(played.own, server)
    assert not torch.allclose(played.own, played.neighbour)
    assert not torch.allclose(server, played.neighbour)
