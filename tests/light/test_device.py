"""A device without torch learns and scores as one with torch does, number for number."""

import numpy as np
import pytest
import torch

from federec.cohort.draw import Devices
from federec.federation.channel import Channel
from federec.federation.device import learn
from federec.federation.scoring import score_global, score_own
from federec.federation.state import State
from federec.light.device import Light, lacks
from federec.light.state import LightState
from federec.methods.base import LOSS
from federec.plugins.registry import build

SEED, USERS, ITEMS = 3, 5, 40
METHODS = [
    ("pfedrec", (), {}),
    ("pfedrec", (), {"epochs": 2, "negatives": 0}),
    ("pfedrec", ("sam",), {"rho_shared": 0.3, "rho_private": 0.2}),
    ("fedmf", (), {}),
    ("fedmf", ("dualper",), {}),
    ("fedmf", ("sam",), {"rho_shared": 0.3, "rho_private": 0.2}),
    ("fedrecon", (), {"passes": 3, "epochs": 2}),
    ("fedrecon", (), {"passes": 2, "disjoint": False}),
    ("fedrap", (), {}),
    ("fedrap", (), {"norm": "l2", "schedule": "fixed", "v1": 0.02, "v2": 0.1, "batch": 2048}),
    ("fedrap", (), {"parts": "common", "tolerance": 0.05}),
    ("fedrap", (), {"parts": "own"}),
    ("fedrap", ("sam",), {"rho_shared": 0.3, "rho_private": 0.2, "schedule": "fixed"}),
]


def made(name, plugins, settings):
    rates = {"item_lr": 2.0, "lr": 0.1, "weight_decay": 0.01} if name == "fedrap" else {"item_lr_factor": 0.2}
    return build(name, plugins, {"dim": 4, "batch": 16} | rates | settings)


@pytest.mark.parametrize(("name", "plugins", "settings"), METHODS)
def test_a_round_is_that_of_torch(name, plugins, settings, random_split):
    method, split = made(name, plugins, settings), random_split(users=USERS, items=ITEMS)
    state, mine = State.start(method, ITEMS, USERS, SEED), LightState.start(method, [ITEMS], USERS, SEED)
    devices, light = Devices.of(split, False), Light(method, split, SEED, False)
    assert lacks(method, ["dense", "secure-sum"], ITEMS) is None
    items = torch.arange(ITEMS)
    for round_ in (1, 2, 3):
        shared, sent, own = {n: v.clone() for n, v in state.shared.items()}, {}, {}

        def deliver(update, users, sent=sent):
            for place, user in enumerate(users.tolist()):
                rows = update.owner == place
                sent[user] = update.ids[rows], {name: value[rows] for name, value in update.rows.items()}

        def observe(cohort, own=own):
            scores = score_own(method, cohort, state, items.expand(len(cohort), -1))
            own.update(zip(cohort.users.tolist(), scores, strict=True))

        learned = learn(method, state, devices, torch.arange(USERS), SEED, round_, Channel(), deliver, observe)
        found = [light.learn(user, round_, _arrays(shared), mine) for user in range(USERS)]
        losses = [loss for each in found for loss in each.losses]
        assert len(losses) == int(learned.figures[LOSS][1])
        assert sum(losses) == pytest.approx(float(learned.figures[LOSS][0]), rel=1e-5)
        after = score_global(method, state, torch.arange(USERS), items.expand(USERS, -1), devices)
        for user, each in enumerate(found):
            ids, rows = sent[user]
            assert each.sent.keys() == rows.keys()
            assert not rows or each.ids.tolist() == ids.tolist()
            for table, change in rows.items():
                _close(each.sent[table], change)
            _close(light.scores(user, _arrays(shared), mine, each), own[user])
            _close(light.scores(user, _arrays(shared), mine), after[user])
        for user in range(USERS):  # what each keeps is the other's
            other = State.start(method, ITEMS, USERS, SEED)
            other.put(user, mine.take(user))
            for key, value in other.private.items():
                _close(value[user], state.private[key][user])
            for key, store in other.stores.items():
                assert store.own(user)[0].tolist() == state.stores[key].own(user)[0].tolist()
                _close(store.own(user)[1], state.stores[key].own(user)[1])
            mine.put(user, state.take(user))
        for table in state.shared:
            state.shared[table] = shared[table] + 0.05 * torch.randn(shared[table].shape)


@pytest.mark.parametrize("plugin", ["plgc", "recency"])
def test_what_numpy_does_not_play_is_named(plugin):
    assert lacks(build("pfedrec", (plugin,)), ["secure-sum"], ITEMS) == f"'pfedrec+{plugin}' as it is set"
    assert lacks(build("pfedrec"), ["clip", "secure-sum"], ITEMS) == "stage 'clip'"


def test_a_method_that_checks_its_data_is_named():
    class Choosy(type(build("pfedrec"))):
        def check(self, devices):
            raise AssertionError("refused")

    assert lacks(Choosy(), [], ITEMS) == "'choosy' as it is set"


def _arrays(params):
    return {name: value.numpy() for name, value in params.items()}


def _close(found, wanted):
    assert np.allclose(found, wanted, rtol=1e-5, atol=1e-5)
