"""A device folder keeps what it is given, shows it to nobody, and never keeps half a round."""

import numpy as np
import pytest
import torch

from federec.cohort.draw import Devices
from federec.data.split import leave_one_out
from federec.errors import UserError
from federec.federation.state import State
from federec.runtimes.config import RunConfig

pytest.importorskip("cryptography", reason="pip install federec[flower]")

from federec.runtimes.flower.catalogue import Catalogue
from federec.runtimes.flower.keys import Key
from federec.runtimes.flower.parameters import Seen
from federec.runtimes.flower.store import DeviceStore

KEY = Key("file", b"k" * 32)
CONFIG = RunConfig.checked(method="pfedrec", settings={"dim": 4})


@pytest.fixture
def store(tmp_path):
    catalogue = Catalogue(tuple(f"item-{code}" for code in range(9)))
    return DeviceStore.create(tmp_path / "device", KEY, catalogue, ["ann", "bob"])


def test_a_share_of_a_data_set_trains_on_what_a_local_run_trains_on(tmp_path, random_split):
    whole = random_split(users=12, items=40)
    for data in (whole.data, whole.data.__class__(**(vars(whole.data) | {"times": None}))):
        codes = [3, 4, 5, 9]
        part = DeviceStore.share(tmp_path / f"timed-{data.times is not None}", KEY, data, codes).devices(seed=5)
        everyone = Devices.of(leave_one_out(data, 5), False)
        for local, code in enumerate(codes):
            own, same = (d.train[d.ptr[u] : d.ptr[u + 1]] for d, u in ((part, local), (everyone, code)))
            assert torch.equal(own, same)
            own, same = (d.gaps[d.closed_ptr[u] : d.closed_ptr[u + 1]] for d, u in ((part, local), (everyone, code)))
            assert torch.equal(own, same)


def test_what_was_added_is_there_when_opened_again(store):
    store.add(0, "item-3", time=5.0, rating=4.0)
    store.add(0, "item-1", time=6.0)
    store.add(1, "item-7")
    store.close()
    again = DeviceStore.open(store.path, KEY)
    assert again.users == ["ann", "bob"]
    assert again.history(0).items.tolist() == [3, 1]
    assert again.history(0).times.tolist() == [5.0, 6.0]
    assert np.isnan(again.history(0).ratings).tolist() == [False, True]
    assert again.slots.tolist() == store.slots.tolist()
    assert again.catalogue == store.catalogue


def test_a_round_can_be_played_again_but_not_the_one_before(store):
    start = State.start(CONFIG.build(), 9, 2, seed=0)
    seen = Seen(torch.arange(9), {"items": start.shared["items"]})
    values = {}
    for number in (1, 2, 5):
        state = store.begin("run", number, start)
        values[number] = state.private["score.0.bias"].clone()
        state.private["score.0.bias"] += number
        store.commit("run", number, state, seen, CONFIG)
    assert torch.equal(store.begin("run", 6, start).private["score.0.bias"], values[5] + 5)
    assert torch.equal(store.begin("run", 5, start).private["score.0.bias"], values[5])
    assert torch.equal(store.begin("run", 3, start).private["score.0.bias"], values[5])
    with pytest.raises(UserError, match="round 2 of run 'run' cannot be played again"):
        store.begin("run", 2, start)
    assert torch.equal(store.begin("other", 1, start).private["score.0.bias"], values[1])


def test_the_state_after_a_chosen_round_is_kept_as_long_as_asked_for(store):
    start = State.start(CONFIG.build(), 9, 2, seed=0)
    for number in range(1, 6):
        state = store.begin("run", number, start)
        state.private["score.0.bias"].fill_(number)
        store.commit("run", number, state, Seen(torch.arange(9), {}), CONFIG, keep=2 if number < 5 else 0)
        if number == 4:
            assert (store.after("run", 2, start).private["score.0.bias"] == 2).all()
    assert (store.after("run", 5, start).private["score.0.bias"] == 5).all()
    assert (store.after("run", 4, start).private["score.0.bias"] == 4).all()
    for run, number in (("run", 2), ("run", 3), ("other", 4)):
        with pytest.raises(UserError, match=f"keeps nothing of round {number} of run '{run}'"):
            store.after(run, number, start)
