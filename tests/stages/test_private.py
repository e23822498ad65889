"""Noise on sums: what devices add in whole numbers, what the server adds, and clipping that follows the devices."""

import numpy as np
import pytest
import torch
from scipy import stats

from federec import streams
from federec.cohort.layers import Param
from federec.federation.channel import Channel
from federec.stages.base import KEPT, Promise, Settling
from federec.stages.central_noise import CentralNoise
from federec.stages.clip import NORM, SHARE, WITHIN, Clip
from federec.stages.distributed_noise import (
    NOISED,
    DistributedNoise,
    hadamard,
    longest,
    padded,
    rounded,
    signs,
    wrapped,
)
from federec.stages.randomness import Real, Simulated
from federec.stages.secure_sum import STEPS, SecureSum
from federec.stages.skellam import bessel, skellam, table

SENDS = {"a": Param((4,), rows=True), "b": Param((3,), rows=True), "net": Param((2, 3))}


def totals(update):
    """The sum over devices, as an aggregator has it."""
    rows = {n: torch.zeros(update.n_items, v.shape[1]).index_add_(0, update.ids, v) for n, v in update.rows.items()}
    return rows | {name: layer.sum(0) for name, layer in update.layers.items()}


def settling(devices=5, memory=None, sends=SENDS):
    return Settling(devices, Simulated.of(3, 1, torch.tensor([-1])), {} if memory is None else memory, sends, 40)


def surprise(found, variance):
    """The p-value of a chi-square test of samples against the Skellam distribution."""
    edges = np.unique(np.round(stats.norm.ppf(np.linspace(0.02, 0.98, 20)) * variance**0.5))
    expected = np.diff([0, *stats.skellam.cdf(edges, variance / 2, variance / 2), 1])
    counted = np.diff([0, *((found <= edge).sum() for edge in edges), len(found)])
    return stats.chisquare(counted, expected * len(found)).pvalue


@pytest.mark.parametrize("source", [Simulated.of(5, 1, torch.arange(10)), Real()], ids=["simulated", "real"])
@pytest.mark.parametrize("variance", [0.3, 4.0, 1000.0])
def test_the_discrete_mechanism_has_its_distribution(variance, source):
    found = skellam(source, torch.arange(10), streams.SKELLAM, 2000, variance).flatten().numpy()
    assert found.dtype.kind == "i"
    assert surprise(found, variance) > 1e-7  # the real one fails once in ten million times
    assert surprise(found, 1.3 * variance) < 1e-4  # the test can fail


def test_few_bits_are_followed_by_more_until_a_sample_is_decided():
    """With 6 bits looked at first, most samples need more; their distribution is the same."""
    random = Simulated.of(6, 1, torch.arange(20))
    found = skellam(random, torch.arange(20), streams.SKELLAM, 200, 4.0, coarse=6).flatten().numpy()
    assert len(set(table(4.0, 6).coarse.tolist())) < 64
    assert surprise(found, 4.0) > 1e-4


def test_the_table_is_that_of_scipy_and_ends_where_nothing_is_left():
    half = bessel(7.5, 30)
    whole = half[0] + 2 * sum(half[1:])
    assert [k / whole for k in half[:20]] == pytest.approx(stats.skellam.pmf(range(20), 3.75, 3.75), rel=1e-9)
    assert table(7.5).coarse[-1] == 2**62 - 1 and table(7.5).coarse[0] == 0


def test_the_rotation_is_its_own_inverse_keeps_lengths_and_spreads_a_spike():
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(hadamard(hadamard(x)), x)
    torch.testing.assert_close(hadamard(x).norm(dim=1), x.norm(dim=1))
    spike = torch.zeros(1, 64)
    spike[0, 5] = 8.0
    torch.testing.assert_close(hadamard(spike).abs(), torch.ones(1, 64))
    assert [padded(n) for n in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]
    assert abs(float(signs(1024).mean())) < 0.15 and set(signs(1024).tolist()) == {-1.0, 1.0}


def test_rounding_is_true_on_average_and_never_longer_than_the_bound():
    x = torch.full((400, 16), 0.3)
    random = Simulated.of(1, 1, torch.arange(400))
    bound = longest(1.2, 16)
    found = rounded(x, bound, random)
    assert float(found.double().norm(dim=1).max()) <= bound < 4  # all up would be 4
    assert float(rounded(x, 4.0, random).double().mean()) == pytest.approx(0.3, abs=0.02)
    broken = torch.tensor([[float("nan")] * 4, [1e9] * 4, [1.2, -0.7, 0.0, 0.0]])
    assert rounded(broken, 2.0, random)[:2].abs().sum() == 0 and rounded(broken, 2.0, random)[2].abs().sum() > 0


def test_whole_numbers_wrap_around():
    assert wrapped(torch.tensor([2**31, -(2**31) - 1, 5, 2**32 + 7])).tolist() == [-(2**31), 2**31 - 1, 5, 7]


@pytest.mark.parametrize("quantile", [None, 0.5])
def test_without_noise_the_distributed_sum_is_that_of_clipped_updates(update, random, quantile):
    clip = Clip(norm=2.0, quantile=quantile)
    channel = Channel((clip, DistributedNoise(multiplier=0.0, devices=5), SecureSum()))
    sent, _ = channel.device(update, random)
    assert list(sent.values()) == [NOISED] and sent.layers[NOISED].dtype == torch.int64
    assert sent.layers[NOISED].shape[1] == channel.sends(SENDS, 40)[NOISED].shape[0] == 512
    found = channel.server({NOISED: sent.layers[NOISED].sum(0)}, settling())
    expected = totals(clip.device(update, random))
    expected.pop(WITHIN, None)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=0.05, rtol=0)  # a step is 2 / (10 sqrt(512))


def test_each_device_adds_its_part_of_the_noise(random_update):
    update, random = random_update(devices=300, scale=0.0), Simulated.of(3, 1, torch.arange(300))
    stage = DistributedNoise(multiplier=3.0, devices=300).bound(Promise(clip=2.0))
    total = stage.device(update, random).layers[NOISED].sum(0).double()
    assert float(total.std()) == pytest.approx(3.0 * stage.l2(512), rel=0.1)
    back = torch.cat([value.flatten() for value in stage.server({NOISED: total.long()}, settling()).values()])
    assert float(back.std()) == pytest.approx(3.0 * 2.0, rel=0.1)  # of the clipped norm, as central noise has it
    assert stage.promise(Promise()).scale == pytest.approx(3.0 / 300**0.5)


def test_central_noise_lies_on_every_value_and_is_in_proportion_to_the_clipped_norm(random_update):
    total = {"items": torch.zeros(5000, 8), "net": torch.zeros(3)}
    channel = Channel((Clip(norm=0.5), CentralNoise(multiplier=4.0)))
    found = channel.server(total, settling())
    assert float(found["items"].std()) == pytest.approx(2.0, rel=0.02) and abs(float(found["items"].mean())) < 0.05
    assert (found["items"] != 0).all() and (found["net"] != 0).all() and not total["items"].any()
    assert stats.kstest(found["items"].flatten().numpy() / 2.0, "norm").pvalue > 1e-3
    again = channel.server(total, settling())
    assert all(torch.equal(value, again[name]) for name, value in found.items())
    other = channel.server(total, settling()._replace(random=Real()))
    assert not torch.equal(found["items"], other["items"])


def test_central_noise_covers_what_a_secure_sum_rounds(random_update):
    total = {"items": torch.zeros(5000, 8)}
    channel = Channel((Clip(norm=0.5), CentralNoise(multiplier=1.0), SecureSum(most=1e6)))
    rounding = 1e6 / STEPS * (5000 * 8) ** 0.5
    assert float(channel.server(total, settling())["items"].std()) == pytest.approx(0.5 + rounding, rel=0.02)


def test_no_noise_is_no_change(random_update):
    total = {"items": torch.randn(50, 8)}
    assert CentralNoise(multiplier=0.0).server(total, settling())["items"] is total["items"]


def test_an_update_and_its_word_on_the_norm_are_together_not_longer_than_the_norm(update, random):
    sent = Clip(norm=1.0, quantile=0.5).device(update, random)
    assert sent.layers[WITHIN].shape == (5, 1)
    size = sent.layers[WITHIN].square().sum(1)
    for rows in sent.rows.values():
        size.index_add_(0, sent.owner, rows.square().sum(1))
    assert float((size + sent.layers["net"].flatten(1).square().sum(1)).max()) == pytest.approx(1.0, abs=1e-5)


def test_the_norm_follows_the_quantile(random_update):
    """Norms of updates are those of 100 fixed devices; from a norm far too small it finds their median."""
    update, random = random_update(devices=100), Simulated.of(3, 1, torch.arange(100))
    memory = {}
    stage = Clip(norm=0.01, quantile=0.5)
    for _ in range(60):
        now = stage.now(memory)
        total = totals(now.device(update, random))
        assert WITHIN not in now.server(total, settling(100, memory, now.sends(SENDS, 40)))
    assert list(memory) == [NORM] and NORM.startswith(KEPT)
    whole = Clip(norm=1e9).device(update, random)
    size = torch.zeros(100)
    for rows in whole.rows.values():
        size.index_add_(0, whole.owner, rows.square().sum(1))
    size = (size + whole.layers["net"].flatten(1).square().sum(1)).sqrt()
    assert float(memory[NORM]) * (1 - SHARE**2) ** 0.5 == pytest.approx(float(size.median()), rel=0.15)


def test_clipping_by_absolute_values(update, random):
    sent = Clip(norm=1.5, power=1).device(update, random)
    size = sent.layers["net"].flatten(1).abs().sum(1)
    for rows in sent.rows.values():
        size.index_add_(0, sent.owner, rows.abs().sum(1))
    assert float(size.max()) == pytest.approx(1.5, rel=1e-5)
    assert Clip(power=1).promise(Promise()).power == 1


def test_what_is_no_number_is_not_sent(update, random):
    update.rows["a"][0, 0], update.layers["net"][2, 0, 0] = float("nan"), float("inf")
    sent = Clip(norm=1.0).device(update, random)
    assert all(value.isfinite().all() for value in sent.values().values())
    assert not sent.rows["a"][sent.owner == 0].any() and not sent.layers["net"][2].any()
    assert sent.rows["a"][sent.owner == 1].any()
