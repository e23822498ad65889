from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federec.cohort.draw import Devices, draw


@st.composite
def histories(draw_):
    """Histories of a few users, the first long enough to be evaluated; some may have every item."""
    n_items = draw_(st.integers(3, 12))
    items = st.permutations(range(n_items))
    sizes = [draw_(st.integers(3, n_items)), *draw_(st.lists(st.integers(1, n_items), max_size=4))]
    return [draw_(items)[:size] for size in sizes], n_items


def closed_items(history, close_held_out):
    return set(history) if close_held_out or len(history) < 3 else set(history[:-2])


def trained_items(history):
    return list(history) if len(history) < 3 else list(history[:-2])


@settings(max_examples=150)
@given(histories(), st.booleans(), st.integers(0, 5), st.integers(0, 2**40), st.integers(1, 1000))
def test_each_positive_is_followed_by_negatives_from_the_open_items(split_of, case, close, negatives, seed, round_):
    per_user, n_items = case
    devices = Devices.of(split_of(per_user, n_items), close)
    samples = draw(devices, torch.arange(len(per_user)), seed, round_, negatives)
    for row, history in enumerate(per_user):
        count = int(samples.counts[row])
        items, labels = samples.items[row, :count].tolist(), samples.labels[row, :count].tolist()
        closed, train = closed_items(history, close), trained_items(history)
        each = negatives if len(closed) < n_items else 0
        assert count == len(train) * (1 + each)
        assert items[:: 1 + each] == train
        assert labels == ([1.0] + [0.0] * each) * len(train)
        drawn = {item for item, label in zip(items, labels, strict=True) if label == 0}
        assert not drawn & closed
        assert drawn <= set(range(n_items))


@settings(max_examples=60)
@given(histories(), st.booleans(), st.integers(0, 2**40), st.data())
def test_samples_do_not_depend_on_who_else_is_in_the_cohort(split_of, case, close, seed, data):
    per_user, n_items = case
    devices = Devices.of(split_of(per_user, n_items), close)
    users = torch.tensor(data.draw(st.permutations(range(len(per_user)))))
    together = draw(devices, users, seed, 3, 4)
    for row, user in enumerate(users.tolist()):
        alone = draw(devices, torch.tensor([user]), seed, 3, 4)
        count = int(alone.counts[0])
        assert count == together.counts[row]
        assert torch.equal(alone.items[0, :count], together.items[row, :count])
        assert torch.equal(alone.labels[0, :count], together.labels[row, :count])
        for epoch in (0, 1):
            assert torch.equal(alone.order(epoch)[0, :count], together.order(epoch)[row, :count])


@settings(max_examples=60)
@given(histories(), st.booleans(), st.integers(0, 2**40), st.integers(0, 20))
def test_every_epoch_holds_every_sample_once(split_of, case, close, seed, epoch):
    per_user, n_items = case
    samples = draw(Devices.of(split_of(per_user, n_items), close), torch.arange(len(per_user)), seed, 1, 4)
    order = samples.order(epoch)
    assert order.shape == samples.items.shape
    assert order.min() >= 0 and order.max() < samples.items.shape[1]
    for row, count in enumerate(samples.counts.tolist()):
        assert sorted(order[row, :count].tolist()) == list(range(count))


def test_rounds_seeds_users_and_epochs_differ(split_of):
    history = list(range(12))
    devices = Devices.of(split_of([history, history], 200), False)
    both = torch.tensor([0, 1])
    first = draw(devices, both, 0, 1, 4)
    assert not torch.equal(first.items[0], first.items[1])
    assert not torch.equal(first.order(0)[0], first.order(0)[1])
    for other in (draw(devices, both, 0, 2, 4), draw(devices, both, 1, 1, 4)):
        assert not torch.equal(first.items, other.items)
        assert not torch.equal(first.order(0), other.order(0))
    assert not torch.equal(first.order(0), first.order(1))


@pytest.mark.parametrize("close", [False, True])
def test_negatives_are_uniform_over_the_open_items(split_of, close):
    history, n_items, negatives, rounds = [3, 17, 0, 9, 11, 19, 5], 20, 100, 40
    devices = Devices.of(split_of([history], n_items), close)
    drawn = [draw(devices, torch.tensor([0]), 7, round_, negatives) for round_ in range(1, rounds + 1)]
    counts = sum(np.bincount(s.items[s.labels == 0], minlength=n_items) for s in drawn)
    open_items = [item for item in range(n_items) if item not in closed_items(history, close)]
    total = 5 * negatives * rounds
    assert counts.sum() == counts[open_items].sum() == total
    expected = total / len(open_items)
    chi_square = ((counts[open_items] - expected) ** 2 / expected).sum()
    freedom = len(open_items) - 1
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)


def test_positions_are_uniform_after_the_shuffle(split_of):
    devices = Devices.of(split_of([list(range(6))], 50), False)
    first = [int(draw(devices, torch.tensor([0]), 0, r, 1).order(0)[0, 0]) for r in range(1, 801)]
    counts = np.bincount(first, minlength=8)  # 4 positives, 4 negatives
    assert np.abs(counts - 100).max() < 5 * np.sqrt(100)


def test_a_device_that_has_every_item_draws_no_negatives_and_disturbs_nobody(split_of):
    devices = Devices.of(split_of([[0, 1, 2, 3, 4], [0, 1, 2]], 5), True)
    samples = draw(devices, torch.tensor([0, 1]), 0, 1, 4)
    assert samples.counts.tolist() == [3, 5]
    assert samples.items[0, :3].tolist() == [0, 1, 2]
    assert samples.labels[0, :3].tolist() == [1, 1, 1]
    assert samples.items[1, 0] == 0
    assert set(samples.items[1, 1:5].tolist()) <= {3, 4}


def test_lengths_of_devices(split_of):
    devices = Devices.of(split_of([[0, 1, 2, 3, 4], [0, 1], [2, 1, 0]], 5), True)
    assert len(devices) == 3
    assert devices.lengths(torch.tensor([2, 1, 0]), 4).tolist() == [5, 10, 3]


def test_history_is_oldest_first_with_the_newest_of_age_zero(split_of):
    split = split_of([[5, 3, 8, 1, 0], [7, 2, 4], [6, 1, 3, 2]], 9)  # the last two of each are held out
    history = Devices.of(split, False).history(torch.tensor([2, 0, 1]))
    assert history.counts.tolist() == [2, 3, 1]
    assert [row[real].tolist() for row, real in zip(history.items, history.real, strict=True)] == [
        [6, 1],
        [5, 3, 8],
        [7],
    ]
    assert history.age[history.real].tolist() == [1, 0, 2, 1, 0, 0]


def test_items_of_the_same_time_are_reordered_by_the_key(split_of):
    split = split_of([[5, 2, 7, 1, 3, 0, 6, 8], [4, 9, 1, 0, 2]], 10)  # the two newest of each are held out
    split = replace(split, moments=np.array([1, 2, 2, 2, 2, 3, 7, 8, 8], np.int32))
    devices = Devices.of(split, False)
    history = devices.history(torch.arange(2))
    drawn = [history.reordered(torch.tensor([key, key])).items.tolist() for key in range(200)]
    for first, second in drawn:
        assert (first[0], sorted(first[1:5]), first[5]) == (5, [1, 2, 3, 7], 0)
        assert (second[0], sorted(second[1:3]), second[3:]) == (4, [1, 9], [0, 0, 0])
    assert len({tuple(first) for first, _ in drawn}) == 24 and len({tuple(second) for _, second in drawn}) == 2
    alone = devices.history(torch.tensor([1])).reordered(torch.tensor([7])).items
    assert alone.tolist() == [drawn[7][1][:3]]  # whoever else is there
