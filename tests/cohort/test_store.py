import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federec.cohort import store as stores
from federec.cohort.rows import Rows
from federec.cohort.store import RowStore

DEVICES, DIM = 4, 2


@pytest.fixture(autouse=True, scope="module")
def _small_pages():
    """So that a device fills several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "PAGE", 3)
        yield


@st.composite
def cohorts(draw):
    """How many items there are, and cohorts of devices with the items they touch; with few items pairs are looked up in
    a dense table, with many by bisection."""
    n_items = draw(st.sampled_from([6, 500]))
    touched = st.lists(st.integers(0, n_items - 1), min_size=1, max_size=8)
    users = st.permutations(range(DEVICES))
    return n_items, draw(st.lists(st.tuples(users, st.lists(touched, min_size=1, max_size=DEVICES)), max_size=4))


def start_of(n_items):
    return torch.arange(n_items * DIM, dtype=torch.float32).view(n_items, DIM) / 10


def index_of(per_device, n_items):
    width = max(len(items) for items in per_device)
    padded = torch.tensor([items + [0] * (width - len(items)) for items in per_device])
    return Rows.of(padded, torch.tensor([len(items) for items in per_device]), n_items)


def contents(store):
    """Every row of every device."""
    return store.take(torch.arange(DEVICES), torch.arange(DEVICES)[:, None], torch.arange(len(store.start)))


@pytest.mark.thorough
@given(cohorts(), st.data())
def test_a_store_behaves_like_a_dictionary(case, data):
    n_items, sequence = case
    start = start_of(n_items)
    store, model = RowStore(start.clone(), DEVICES), {}

    def check(held, expected):
        plain = [torch.stack([expected.get((u, i), start[i]) for i in range(n_items)]) for u in range(DEVICES)]
        assert torch.equal(contents(held), torch.stack(plain))

    for turn, (order, per_device) in enumerate(sequence):
        users = order[: len(per_device)]
        index = index_of(per_device, n_items)
        new = torch.arange(len(index) * DIM, dtype=torch.float32).view(-1, DIM) + 100 * (turn + 1)
        before, kept = store.copy(), copy.deepcopy(model)
        store.put(torch.tensor(users), index, new)
        for row, (device, item) in enumerate(zip(index.owner.tolist(), index.ids.tolist(), strict=True)):
            model[users[device], item] = new[row]
        check(before, kept)
        check(store, model)
    wanted = data.draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, n_items - 1)), min_size=1))
    owner, item = torch.tensor(wanted).T
    taken = store.take(torch.tensor([2, 0]), owner, item)
    assert torch.equal(taken, torch.stack([model.get(((2, 0)[o], i), start[i]) for o, i in wanted]))
    again = RowStore.of({name: value.numpy().copy() for name, value in store.tensors().items()})
    check(again, model)
    assert [(u, i) for u in range(DEVICES) for i in again.own(u)[0].tolist()] == sorted(model)
    other = RowStore(start, DEVICES)
    other.put(torch.arange(DEVICES), index_of([[1, 0]] * DEVICES, n_items), torch.full((2 * DEVICES, DIM), -1.0))
    for user in range(DEVICES):
        other.give(user, *store.own(user))
    check(other, model)


def test_a_device_has_pages_for_the_rows_it_touched_and_no_more():
    store, users = RowStore(start_of(50), DEVICES), torch.tensor([3, 1])
    for touched in ([[5, 9], [4]], [[5, 8, 30, 31], [4]], [[9], [4, 40]]):
        index = index_of(touched, 50)
        store.put(users, index, torch.zeros(len(index), DIM))
    assert store.held.tolist() == [0, 2, 0, 5]
    assert (store.pages >= 0).sum(1).tolist() == [0, 1, 0, 2]
    assert store.used == 3 and sorted(store.pages[store.pages >= 0].tolist()) == [0, 1, 2]
    assert store.tensors()["rows"].shape == (3, 3, DIM)


def test_rows_stay_where_they_are_when_a_store_grows():
    store, users = RowStore(start_of(50), DEVICES), torch.tensor([2])
    store.put(users, index_of([[7]], 50), torch.full((1, DIM), 5.0))
    store.rows[0, 0] += 1.0  # as a kernel does
    store.reserve(torch.arange(DEVICES), torch.full((DEVICES,), 50))
    assert store.pages[2, 0] == 0 and len(store.rows) == DEVICES * 17
    assert torch.equal(store.take(users, torch.tensor([0]), torch.tensor([7]))[0], torch.full((DIM,), 6.0))
    assert not store.rows[1:].any()


def test_what_was_taken_is_a_copy():
    start, one, item = start_of(6), torch.tensor([0]), torch.tensor([3])
    store = RowStore(start.clone(), 1)
    taken = store.take(one, one, item)
    taken += 5
    assert torch.equal(store.start, start)
    store.put(one, index_of([[3]], 6), taken)
    again = store.take(one, one, item)
    again += 5
    assert torch.equal(store.take(one, one, item)[0], start[3] + 5)
