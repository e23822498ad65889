"""A device recommends offline what a local run would recommend to its user."""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography", reason="pip install federec[flower]")

from federec.cohort.draw import Devices
from federec.data.split import leave_one_out
from federec.errors import UserError
from federec.federation.round import play
from federec.federation.scoring import score_global, score_own
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.methods.registry import METHODS
from federec.network.device_folder import DeviceFolder
from federec.network.keys import Key
from federec.network.parameters import Payload
from federec.network.recommend import recommend, scored
from federec.runs.config import RunConfig

KEY = Key("file", b"k" * 32)
SEED = 3


def seen_of(method, shared, ids):
    tables = {name for name, param in method.shared().items() if param.rows}
    rows = {name: shared[name][ids] for name in tables}
    return Payload(ids if tables else ids[:0], rows, {name: shared[name] for name in shared.keys() - tables})


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if issubclass(method, DeviceMethod)])
def test_it_ranks_as_the_device_of_a_local_run_does(name, small, random_split, tmp_path):
    split = random_split(users=6, items=25)
    method = small(name)
    config = RunConfig.of(method, split.data, seed=SEED)
    devices, everyone = Devices.of(split, False), torch.arange(6)
    store = DeviceFolder.share(tmp_path / "device", KEY, split.data, range(6))
    state = State.start(method, 25, 6, SEED)
    for round_ in (1, 2, 3):
        before, start = state.copy(), State.start(method, 25, 6, SEED)
        mine = store.begin("run", round_, start)
        assert all(torch.equal(mine.private[key], state.private[key]) for key in state.private)
        play(method, state, devices, everyone, SEED, round_)
        seen = seen_of(method, before.shared, torch.arange(25))
        store.commit("run", round_, state, seen, config)

    items, user = torch.arange(25)[None], torch.tensor([4])
    expected = []
    if method.view == "own":
        replay = before.copy()
        play(
            *(method, replay, devices, user, SEED, 3),
            lambda cohort: expected.append(score_own(method, cohort, replay, items)),
        )
    else:  # the device has yet to hear what the server made of round 3
        state.shared = before.shared
        expected.append(score_global(method, state, user, items, devices))
    assert np.allclose(scored(store, 4), expected[0][0], atol=1e-6)


@pytest.fixture
def trained(small, random_split, tmp_path):
    """A device of two users that has seen items 0 to 9 of 12."""
    split = random_split(users=2, items=12, most=5)
    method = small("fedmf")
    store = DeviceFolder.share(tmp_path / "device", KEY, split.data, [0, 1])
    start = State.start(method, 12, 2, SEED)
    state = store.begin("run", 1, start)
    seen = seen_of(method, start.shared, torch.arange(10))
    store.commit("run", 1, state, seen, RunConfig.of(method, split.data, seed=SEED))
    return store


@pytest.mark.parametrize("ties", ["random", "file"])
def test_ties_in_time_are_ordered_as_in_the_run(ties, small, random_split, tmp_path):
    data = random_split(users=6, items=25).data
    data = replace(data, times=np.zeros_like(data.times))
    method, split = small("pfedrec"), leave_one_out(data, SEED, ties)
    config = RunConfig.of(method, data, seed=SEED, ties=ties)
    store = DeviceFolder.share(tmp_path / "device", KEY, data, range(6))
    state = State.start(method, 25, 6, SEED)
    before, expected, items = state.copy(), [], torch.arange(25)[None]
    store.begin("run", 1, State.start(method, 25, 6, SEED))
    play(method, state, Devices.of(split, False), torch.arange(6), SEED, 1)
    store.commit("run", 1, state, seen_of(method, before.shared, torch.arange(25)), config)
    replay = before.copy()
    play(
        *(method, replay, Devices.of(split, False), torch.tensor([4]), SEED, 1),
        lambda cohort: expected.append(score_own(method, cohort, replay, items)),
    )
    assert np.allclose(scored(store, 4), expected[0][0], atol=1e-6)


def test_only_items_that_are_new_to_the_user_and_known_to_the_device(trained):
    known = {str(item) for item in trained.history(0).items}
    items = {item.item for item in recommend(trained, 0, k=100)}
    assert items == {str(code) for code in range(10)} - known
    trained.add(0, next(iter(items)))
    assert len(recommend(trained, 0, k=100)) == len(items) - 1
    assert len(recommend(trained, 0, k=2)) == 2


def test_best_first_and_with_titles(trained):
    trained.catalogue.titles["3"] = "Heat (1995)"
    scores, items = scored(trained, 1), recommend(trained, 1, k=100)
    assert [item.score for item in items] == sorted((float(scores[int(i.item)]) for i in items), reverse=True)
    assert all(item.title == ("Heat (1995)" if item.item == "3" else "") for item in items)


def test_what_is_not_learned_yet_cannot_be_asked(random_split, tmp_path):
    store = DeviceFolder.share(tmp_path / "device", KEY, random_split().data, [0])
    with pytest.raises(UserError, match="nothing was learned here yet"):
        recommend(store, 0)


def test_a_user_without_interactions_is_answered(trained):
    for item in list(trained.history(0).items):
        trained.forget(0, str(item))
    assert len(recommend(trained, 0, k=100)) == 10


@pytest.mark.parametrize("name", ["pfedrec", "fedmf", "fedrap"])
def test_after_a_federation_a_device_ranks_as_in_a_local_run(name, small, random_split, federation):
    """Users spread over three devices, against all users in one process."""
    split, method = random_split(users=7, items=25), small(name)
    settings = method.model_dump()
    federated = federation(split.data, name, nodes=3, rounds=3, seed=SEED, settings=settings, channel=("dense",))
    federated.serve()
    devices, everyone, state = Devices.of(split, False), torch.arange(7), State.start(method, 25, 7, SEED)
    for round_ in (1, 2):
        play(method, state, devices, everyone, SEED, round_)
    items, before, got = torch.arange(25)[None], state.shared, []

    def observe(cohort):
        if method.view == "own":
            got.append((cohort.users, score_own(method, cohort, state, items.expand(len(cohort), -1))))

    play(method, state, devices, everyone, SEED, 3, observe)
    if method.view == "global":
        state.shared = before
        got.append((everyone, score_global(method, state, everyone, items.expand(7, -1), devices)))
    for users, scores in got:
        for user, expected in zip(users.tolist(), scores, strict=True):
            store = federated.folder(user % 3)
            assert np.allclose(scored(store, store.user(str(user))), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["pfedrec", "fedrap"])
def test_a_catalogue_that_has_grown(name, small, random_split, tmp_path):
    data, method = random_split(users=2, items=20).data, small(name)
    store = DeviceFolder.share(tmp_path / "device", KEY, data, [0, 1])
    config = RunConfig.of(method, data, seed=SEED)
    begun = State.start(method, 20, 2, SEED)
    store.commit("run", 1, store.begin("run", 1, begun), seen_of(method, begun.shared, torch.arange(20)), config, [20])
    before = scored(store, 0)
    store.grow(store.catalogue.grown(["new-0", "new-1"]))
    assert np.isnan(scored(store, 0)[20:]).all()
    assert np.isfinite(before).all()
    begun = State.start(method, 20, 2, SEED).grown(method, 22, SEED)
    store.commit(
        "run", 2, store.begin("run", 2, begun), seen_of(method, begun.shared, torch.arange(22)), config, [20, 22]
    )
    assert np.isfinite(scored(store, 0)).all()
    assert "new-0" in {item.item for item in recommend(store, 0, k=100)}
