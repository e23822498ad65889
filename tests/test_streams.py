import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federec import streams

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
WHOLE = st.integers(-(2**63), 2**63 - 1)


def splitmix(position):
    """SplitMix64's output at a state, in plain integers."""
    z = position & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def unsigned(array):
    return [int(value) & MASK for value in array]


@pytest.mark.parametrize(
    ("seed", "published"),
    [
        (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]),
        (1234567, [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]),
    ],
)
def test_bits_are_the_published_outputs_of_splitmix64(seed, published):
    draws = 1 + np.arange(len(published))
    assert unsigned(streams.bits(np.int64(seed), draws)) == published


@given(
    st.integers(0, 2**40), st.integers(0, 2**20), st.lists(st.integers(0, 2**31 - 1), min_size=1), st.integers(0, 2**43)
)
def test_numpy_torch_and_plain_integers_agree(seed, round_, users, draw):
    base = splitmix(splitmix(seed) + round_ * GOLDEN)
    keys = [splitmix(user * GOLDEN + base) for user in users]
    numbers = [splitmix(key + draw * GOLDEN) for key in keys]
    assert [streams.key(seed, round_, user) % 2**64 for user in users] == keys
    for array in (np.array(users), torch.tensor(users)):
        got = streams.keys(seed, round_, array)
        assert unsigned(got) == keys
        assert unsigned(streams.bits(got, draw)) == numbers
        assert unsigned(streams.bits(got, array * 0 + draw)) == numbers


def test_pinned_values():
    """A changed number here means that no old run can be repeated."""
    keys = streams.keys(42, 7, np.arange(3))
    assert keys.tolist() == [-2276065582778092394, -6616403728644035724, 2386281289838151681]
    assert streams.bits(keys, streams.SHUFFLE).tolist() == [
        -4798723206721730762,
        -3180421290280203869,
        -6074264243599453112,
    ]
    assert streams.below(streams.bits(keys, 5), 1000).tolist() == [61, 560, 649]


@given(st.lists(WHOLE, min_size=1), st.integers(1, 2**31 - 1))
def test_below_is_the_upper_half_scaled(random, bound):
    expected = [((number & MASK) >> 32) * bound >> 32 for number in random]
    assert streams.below(np.array(random), bound).tolist() == expected
    assert streams.below(torch.tensor(random), bound).tolist() == expected
    assert all(0 <= number < bound for number in expected)


def test_below_and_unit_are_close_to_uniform():
    random = streams.bits(streams.keys(0, 1, np.arange(300)[:, None]), np.arange(300))
    counts = np.bincount(streams.below(random, 7).ravel())
    assert len(counts) == 7
    assert np.abs(counts - random.size / 7).max() < 5 * np.sqrt(random.size / 7)
    numbers = streams.unit(random)
    assert numbers.min() >= 0 and numbers.max() < 1
    tenths = np.bincount((numbers * 10).astype(int).ravel())
    assert np.abs(tenths - random.size / 10).max() < 5 * np.sqrt(random.size / 10)


def test_unit_is_the_same_in_float32():
    random = torch.tensor([-1, 0, 2**62, 12345678901234567])
    numbers = streams.unit(random.numpy())
    assert numbers.astype(np.float32).astype(np.float64).tolist() == numbers.tolist() == streams.unit(random).tolist()
    assert numbers[0] == 1 - 2**-24


def test_neighbouring_streams_have_nothing_in_common():
    keys = [streams.keys(seed, round_, np.arange(50)) for seed in (0, 1) for round_ in (1, 2)]
    numbers = np.concatenate([streams.bits(key[:, None], np.arange(50)) for key in keys]).ravel()
    assert len(np.unique(numbers)) == len(numbers)
