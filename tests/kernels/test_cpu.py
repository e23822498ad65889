import numba
import numpy as np
import pytest
import torch

from federec import streams
from federec.checks.comparing import random_split
from federec.cohort.draw import Devices
from federec.cohort.draw import draw as draw_stacked
from federec.evaluation.evaluator import train_pairs
from federec.evaluation.ranking import sampled_ranks, validation_ranks
from federec.federation import fused_base
from federec.federation.fused_base import first_ranks, held_out_ranks
from federec.kernels.cpu import DIGIT, Sorting, bits, draw, exp, laplace, log1p, look_up, make_noise, send, shuffled
from federec.stages.noise import laplace as stage_laplace
from federec.stages.randomness import Simulated


@numba.njit
def all_bits(keys, draws):
    return [bits(key, draw) for key, draw in zip(keys, draws)]  # noqa: B905


@numba.njit
def drawn(*args):
    return draw(*args)


@numba.njit
def shuffle(key, epoch, count, sorting):
    shuffled(key, epoch, count, sorting)


def order(key, epoch, count):
    """The positions of samples after shuffling."""
    sorting = Sorting(*(np.zeros(count, np.int32) for _ in range(4)), np.zeros(1 << DIGIT, np.int32))
    shuffle(key, epoch, count, sorting)
    return sorting.order


@numba.njit
def exps(x):
    return [exp(each) for each in x]


@numba.njit
def logarithms(x):
    return [log1p(each) for each in x]


@numba.njit
def looked_up(table, rows, out):
    look_up(table, rows, out)


@numba.njit
def send_all(*args):
    send(*args)


@numba.njit
def add_noise(*args):
    laplace(*args)


@pytest.mark.parametrize("width", [1, 7, 32, 300])
def test_noise_is_that_of_the_stage(width):
    ids, key = torch.arange(0, 1000, 7), streams.keys(3, 2, torch.tensor([5]))
    values = np.ones((len(ids), width + 1), np.float32)
    add_noise(values[:, :width], ids.int().numpy(), key.numpy().view(np.uint64)[0], 2, make_noise(0.5))
    drawn = stage_laplace(Simulated(key), torch.zeros_like(ids), streams.LAPLACE + (2 << 36), ids, width)
    torch.testing.assert_close(torch.from_numpy(values[:, :width]), 1 + 0.5 * drawn, rtol=0, atol=1e-6)
    assert np.all(values[:, width:] == 1)


def test_bits_are_those_of_the_streams():
    keys, draws = np.array([0, 1, -5, 2**62], np.int64), np.array([0, 3, 2**40 + 7, 2**41], np.int64)
    expected = streams.bits(keys, draws).view(np.uint64)
    assert list(all_bits(keys.view(np.uint64), draws.view(np.uint64))) == expected.tolist()


@pytest.mark.parametrize("n_items", [40, 3000], ids=["listed", "looked for"])
def test_samples_and_their_order_are_those_of_the_stacked_engine(random_split, n_items):
    devices = Devices.of(random_split(users=9, items=n_items, least=4, most=30, seed=3), False)
    users = devices.lengths(torch.arange(9), 4).argsort(descending=True)
    samples = draw_stacked(devices, users, 5, 2, 4)
    orders = [samples.order(epoch) for epoch in (0, 3)]
    for row, user in enumerate(users.tolist()):
        key = samples.key[row].numpy().view(np.uint64)
        items, open_items = np.zeros(500, np.int32), np.zeros(n_items + 2, np.int32)
        gaps = devices.gaps[devices.closed_ptr[user] : devices.closed_ptr[user + 1]].numpy()
        positives = devices.train[devices.ptr[user] : devices.ptr[user + 1]].numpy()
        count = drawn(positives, gaps, n_items, key, 4, items, open_items)
        assert count == int(samples.counts[row])
        assert items[:count].tolist() == samples.items[row, :count].tolist()
        for epoch, expected in zip((0, 3), orders, strict=True):
            assert order(key, epoch, count).tolist() == expected[row, :count].tolist()


def test_many_samples_are_shuffled_by_key_and_equal_keys_by_position():
    count, key = 100_000, np.array([7], np.int64)
    keys = (streams.bits(key, streams.SHUFFLE + np.arange(count)) >> 33) & 0x7FFF_FFFF
    assert len(np.unique(keys)) < count
    assert (order(key.view(np.uint64)[0], 0, count) == np.argsort(keys, kind="stable")).all()


def test_exp():
    x = -np.geomspace(1e-6, 86, 10_000).astype(np.float32)
    assert np.allclose(exps(x), np.exp(x.astype(np.float64)), rtol=5e-6, atol=1e-7)
    assert exps(np.array([0, -200, -np.inf], np.float32)) == pytest.approx([1, 0, 0])


def test_log1p():
    x = np.append(np.geomspace(1e-30, 1, 10_000), 0).astype(np.float32)
    assert np.allclose(logarithms(x), np.log1p(x.astype(np.float64)), rtol=5e-7, atol=0)


def test_ranks_are_those_of_torch():
    scores = torch.randn(40, 7, generator=torch.Generator().manual_seed(0)).round()  # with ties
    scores[3, 2] = scores[5, 0] = torch.nan
    scores[6, 1] = scores[7, 0] = torch.inf
    assert torch.equal(first_ranks(scores), sampled_ranks(scores, torch.zeros(40, 7)).int())
    assert torch.equal(first_ranks(scores), sampled_ranks(scores))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_ranks_of_held_out_items_are_those_of_torch(monkeypatch, several, threads):
    """With ties, scores that are no numbers or infinite, and held-out items that are also in the history."""
    n_items, users = 60, torch.tensor([4, 0, 7, 2, 9, 11, 5])
    data = random_split(users=12, items=n_items, least=1, most=40)
    devices, random = Devices.of(data, False), np.random.default_rng(several)
    scores = torch.from_numpy(random.integers(0, 25, (len(users), n_items)).astype(np.float32))
    for value in (torch.nan, torch.inf, -torch.inf):
        scores[torch.from_numpy(random.random(scores.shape) < 0.05)] = value
    count = [3, 0, 1, 40, 2, 1, 5] if several else [1] * len(users)
    row = torch.repeat_interleave(torch.arange(len(users)), torch.tensor(count))
    held = torch.from_numpy(np.concatenate([random.permutation(n_items)[:each] for each in count]))
    before = scores.clone()
    monkeypatch.setattr(fused_base, "_RANKED", 0)  # so few are shared, too
    torch.set_num_threads(threads)
    try:
        found = held_out_ranks(devices, scores, users, (row, held))
    finally:
        torch.set_num_threads(1)
    torch.testing.assert_close(scores, before, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found, validation_ranks(scores, train_pairs(data, users), (row, held)))


@pytest.mark.parametrize("dim", [5, 16, 40])
def test_rows_are_copied_and_their_changes_are_added_whatever_their_width(dim):
    random = np.random.default_rng(dim)
    shared, total = random.normal(size=(2, 90, dim)).astype(np.float32)
    ids = random.permutation(90)[:70].astype(np.int32)
    table, sent = np.zeros((70, dim), np.float32), np.zeros(3, np.int64)
    looked_up(shared, ids, table)
    assert (table == shared[ids]).all()
    table[random.random(table.shape) < 0.1] += 1
    expected, change = total.copy(), table - shared[ids]
    expected[ids] += change
    send_all(ids, table, shared, total, sent)
    assert (total == expected).all()
    assert sent.tolist() == [70, (change != 0).any(1).sum(), (change != 0).sum()]
