import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federec.cohort.rows import Rows, RowStore, look_up


@st.composite
def samples(draw):
    """Items [C, S] of which device c has the first counts[c]; few items make the dense branch, many the sorted one."""
    width = draw(st.integers(1, 6))
    n_items = draw(st.sampled_from([2, 8 * width, 8 * width + 1, 500]))
    devices = draw(st.integers(1, 4))
    item = st.integers(0, n_items - 1)
    items = draw(st.lists(st.lists(item, min_size=width, max_size=width), min_size=devices, max_size=devices))
    counts = draw(st.lists(st.integers(1, width), min_size=devices, max_size=devices))
    return torch.tensor(items), torch.tensor(counts), n_items


def pairs_of(items, counts):
    """The distinct (device, item) pairs, sorted: plain Python."""
    return sorted({(c, int(i)) for c, n in enumerate(counts) for i in items[c, :n]})


@given(samples())
def test_both_branches_index_the_distinct_pairs(case):
    items, counts, n_items = case
    pairs = pairs_of(items, counts)
    rows = Rows.of(items, counts, n_items)
    assert (rows.table is not None) == (n_items <= 8 * items.shape[1])
    assert list(zip(rows.owner.tolist(), rows.ids.tolist(), strict=True)) == pairs
    assert len(rows) == len(pairs)
    assert rows.counts(len(items)).tolist() == [sum(c == o for o, _ in pairs) for c in range(len(items))]
    for c, n in enumerate(counts.tolist()):
        assert [pairs[slot] for slot in rows.slots[c, :n]] == [(c, int(i)) for i in items[c, :n]]


@given(samples())
def test_padding_points_at_a_row_of_its_own_device(case):
    items, counts, n_items = case
    rows = Rows.of(items, counts, n_items)
    assert torch.equal(rows.owner[rows.slots], torch.arange(len(items))[:, None].expand_as(items))


@given(samples(), st.data())
def test_find_knows_present_and_absent_pairs(case, data):
    items, counts, n_items = case
    pairs = pairs_of(items, counts)
    rows = Rows.of(items, counts, n_items)
    near = sorted({i for _, i in pairs} | {0, n_items - 1})
    wanted = data.draw(st.lists(st.tuples(st.integers(-1, len(items) - 1), st.sampled_from(near)), min_size=1))
    owner, item = torch.tensor(wanted).T
    expected = [pairs.index(pair) if pair in pairs else -1 for pair in wanted]
    assert rows.find(owner, item).tolist() == expected
    everywhere = rows.find(torch.arange(len(items))[:, None], torch.tensor([near]))
    assert everywhere.tolist() == [
        [pairs.index((c, i)) if (c, i) in pairs else -1 for i in near] for c in range(len(items))
    ]


def test_look_up_in_nothing():
    assert look_up(torch.zeros(0, dtype=torch.int64), torch.tensor([3, 0])).tolist() == [-1, -1]
    assert look_up(torch.tensor([2, 5]), torch.tensor([5, 2, 1, 4, 9])).tolist() == [1, 0, -1, -1, -1]


DEVICES, ITEMS, DIM = 4, 6, 2
START = torch.arange(ITEMS * DIM, dtype=torch.float32).view(ITEMS, DIM) / 10

cohorts = st.lists(
    st.tuples(
        st.permutations(range(DEVICES)),
        st.lists(st.lists(st.integers(0, ITEMS - 1), min_size=1, max_size=4), min_size=1, max_size=DEVICES),
    ),
    max_size=4,
)


def index_of(per_device, n_items):
    width = max(len(items) for items in per_device)
    padded = torch.tensor([items + [0] * (width - len(items)) for items in per_device])
    return Rows.of(padded, torch.tensor([len(items) for items in per_device]), n_items)


def contents(store):
    """Every row of every device."""
    users = list(range(DEVICES))
    return store.take(users, torch.arange(DEVICES)[:, None], torch.arange(ITEMS)[None])


@given(cohorts, st.data())
def test_a_store_behaves_like_a_dictionary(sequence, data):
    store, model = RowStore(START, DEVICES), {}
    for turn, (order, per_device) in enumerate(sequence):
        users = order[: len(per_device)]
        index = index_of(per_device, ITEMS)
        new = torch.arange(len(index) * DIM, dtype=torch.float32).view(-1, DIM) + 100 * (turn + 1)
        before, kept = store.copy(), copy.deepcopy(model)
        store.put(users, index, new)
        for row, (device, item) in enumerate(zip(index.owner.tolist(), index.ids.tolist(), strict=True)):
            model[users[device], item] = new[row]
        for held, expected in ((before, kept), (store, model)):
            plain = [[expected.get((u, i), START[i]) for i in range(ITEMS)] for u in range(DEVICES)]
            assert torch.equal(contents(held), torch.stack([torch.stack(rows) for rows in plain]))
    wanted = data.draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, ITEMS - 1)), min_size=1))
    owner, item = torch.tensor(wanted).T
    taken = store.take([2, 0], owner, item)
    assert torch.equal(taken, torch.stack([model.get(((2, 0)[o], i), START[i]) for o, i in wanted]))
    again = RowStore.of({name: value.clone() for name, value in store.tensors().items()})
    assert torch.equal(contents(again), contents(store))
    assert [ids.tolist() for ids in again.ids] == [ids.tolist() for ids in store.ids]
    touched = sorted(model)
    assert [(u, i) for u in range(DEVICES) for i in again.ids[u].tolist()] == touched


def test_what_was_taken_is_a_copy():
    store = RowStore(START.clone(), 1)
    taken = store.take([0], torch.tensor([0]), torch.tensor([3]))
    taken += 5
    assert torch.equal(store.start, START)
    store.put([0], index_of([[3]], ITEMS), taken)
    again = store.take([0], torch.tensor([0]), torch.tensor([3]))
    again += 5
    assert torch.equal(store.take([0], torch.tensor([0]), torch.tensor([3]))[0], START[3] + 5)


@pytest.mark.parametrize("n_items", [5, 10_000])
def test_a_cohort_of_equal_items_has_one_row_each(n_items):
    rows = Rows.of(torch.full((3, 7), 4), torch.tensor([7, 2, 1]), n_items)
    assert rows.ids.tolist() == [4, 4, 4]
    assert rows.owner.tolist() == [0, 1, 2]
    assert rows.find(torch.tensor([1, 1]), torch.tensor([4, 3])).tolist() == [1, -1]


def test_rows_that_no_sample_has_a_slot_for():
    items, counts = torch.tensor([[3, 1, 3], [2, 0, 0]]), torch.tensor([3, 1])
    rows = Rows.of(items, counts, 5, torch.tensor([[4, 1], [4, 0]]))
    assert rows.owner.tolist() == [0, 0, 0, 1, 1, 1] and rows.ids.tolist() == [1, 3, 4, 0, 2, 4]
    assert rows.slots.tolist() == [[1, 0, 1], [4, 4, 4]]  # padding: a row of the device's own samples
