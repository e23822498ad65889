import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federec.cohort.rows import Rows, look_up


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
