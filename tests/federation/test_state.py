import torch

from federec.cohort.draw import Devices
from federec.cohort.layers import USERS, kept_bytes
from federec.federation.round import play
from federec.federation.state import State
from federec.plugins.registry import build


def played(method, split):
    state = State.start(method, split.data.n_items, split.data.n_users, seed=5)
    play(method, state, Devices.of(split, False), torch.arange(0, split.data.n_users, 2), 5, 1)
    return state


def equal(a, b):
    a, b = a.tensors(), b.tensors()
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())


def test_the_start_is_a_function_of_the_seed_and_alike_on_all_devices(device_method):
    first, again, other = (State.start(device_method, 40, 6, seed) for seed in (1, 1, 2))
    assert equal(first, again)
    random = {**device_method.shared(), **device_method.private()}.values()
    assert equal(first, other) == all(param.init == "zeros" for param in random)
    assert all(torch.equal(value, value[:1].expand_as(value)) for value in first.private.values())
    assert set(first.shared) == set(device_method.shared())
    for name, param in device_method.private().items():
        assert (name in first.stores) == param.rows != (name in first.private)
        value = first.stores[name].start if param.rows else first.private[name]
        assert value.shape == ((40 if param.rows else 6), *param.shape)


def test_a_round_leaves_what_it_began_with(device_method, random_split):
    split = random_split(users=12, items=40, least=3, most=9, seed=1)
    state = played(device_method, split)
    begun, copy = state.begun(), state.copy()
    play(device_method, state, Devices.of(split, False), torch.arange(12), 5, 2)
    assert equal(begun, copy) and not equal(state, copy)


def test_more_devices_do_not_change_the_start(device_method):
    few, many = State.start(device_method, 40, 2, 1), State.start(device_method, 40, 9, 1)
    common = [name for name, param in device_method.shared().items() if USERS not in param.shape]
    assert all(torch.equal(few.shared[name], many.shared[name]) for name in common)
    assert all(torch.equal(value, many.private[name][:2]) for name, value in few.private.items())


def test_adam_has_moments_where_it_is_asked_for(small):
    state = State.start(small("everything"), 40, 6, 1)
    assert set(state.private) == {"user", "user/m", "user/v", "user/t"}
    assert state.private["user/t"].shape == (6,)
    assert not state.private["user/m"].any() and not state.private["user/v"].any()


def test_bytes_kept_by_a_device(device_method, random_split):
    split = random_split()
    state = played(device_method, split)
    whole, item = kept_bytes(device_method.private())
    assert whole * split.data.n_users == sum(value.nbytes for value in state.private.values())
    touched = [store.own(0) for store in state.stores.values()]
    assert sum(ids.nbytes + rows.nbytes for ids, rows in touched) == item * len(touched[0][0] if touched else ())


def test_a_copy_is_independent(device_method, random_split):
    split = random_split()
    state = played(device_method, split)
    flat = {name: value.clone() for name, value in state.tensors().items()}
    play(device_method, state.copy(), Devices.of(split, False), torch.arange(12), 5, 2)
    assert flat.keys() == state.tensors().keys()
    assert all(torch.equal(value, flat[name]) for name, value in state.tensors().items())


def test_flat_form_and_back(device_method, random_split):
    split = random_split()
    state = played(device_method, split)
    flat = {name: value.clone().numpy() for name, value in state.tensors().items()}
    again = State.of(dict(reversed(flat.items())))  # a file has its own order
    assert equal(again, state)
    for one in (state, again):
        play(device_method, one, Devices.of(split, False), torch.arange(12), 5, 2)
    assert equal(again, state)


def test_new_items_have_the_mean_row_and_private_rows_of_their_own():
    method = build("fedrap", settings={"dim": 4})
    start = State.start(method, 30, 1, seed=5)
    grown = start.grown(method, 60, seed=5)
    assert torch.equal(grown.shared["common"][:30], start.shared["common"])
    assert torch.allclose(grown.shared["common"][30:], start.shared["common"].mean(0).expand(30, -1))
    assert len(grown.stores["own"].start.unique(dim=0)) == 60, "none is a copy of the first items' rows"
