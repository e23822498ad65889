"""What happens to updates on a device: rows asked for, clipping, noise."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="pip install federec[flower]")

from federec.federation.update import Update
from federec.network.channel import ChannelSettings, clipped, noisy, rows_to_ask
from federec.network.parameters import Payload

SECRET = bytes(range(16))


def update(scale=1.0):
    """Two devices with 2 and 3 rows, and a layer each."""
    generator = torch.Generator().manual_seed(1)
    rows, layer = torch.randn(5, 4, generator=generator), torch.randn(2, 3, 2, generator=generator)
    return Update(torch.tensor([0, 3, 1, 2, 4]), torch.tensor([2, 3]), {"items": rows * scale}, {"net": layer * scale})


def norms(sent):
    parts = zip(sent.rows["items"].split([2, 3]), sent.layers["net"], strict=True)
    return [math.sqrt(float(rows.square().sum() + layer.square().sum())) for rows, layer in parts]


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_no_device_sends_more_than_the_norm_and_directions_stay(scale, most):
    before, after = update(scale), clipped(update(scale), most)
    for old, new in zip(norms(before), norms(after), strict=True):
        assert new == pytest.approx(min(old, most), rel=1e-4)
    ratio = after.rows["items"] / before.rows["items"]
    assert torch.allclose(ratio[:2], ratio[0, 0].expand(2, 4), rtol=1e-4)


def test_nothing_is_clipped_unless_asked_for():
    sent = update()
    assert clipped(sent, None) is sent


def seen(size=100_000):
    return Payload(torch.arange(size), {"items": torch.zeros(size, 2)}, {"net": torch.zeros(500)})


@pytest.mark.parametrize(("kind", "deviation"), [("laplace", math.sqrt(2) * 0.3), ("gaussian", 0.3)])
def test_noise_has_its_distribution(kind, deviation):
    noise = noisy(seen(), ChannelSettings(noise=kind, scale=0.3), SECRET, "run", 1).rows["items"].flatten()
    assert float(noise.mean()) == pytest.approx(0, abs=0.01)
    assert float(noise.std()) == pytest.approx(deviation, rel=0.02)
    kurtosis = float(((noise / noise.std()) ** 4).mean())
    assert kurtosis == pytest.approx(6 if kind == "laplace" else 3, rel=0.1)


def test_noise_is_the_same_when_a_round_is_played_again_and_another_otherwise():
    channel = ChannelSettings(noise="gaussian", scale=1.0)
    first = noisy(seen(50), channel, SECRET, "run", 1)
    assert torch.equal(first.rows["items"], noisy(seen(50), channel, SECRET, "run", 1).rows["items"])
    for secret, run, round_ in ((SECRET[::-1], "run", 1), (SECRET, "other", 1), (SECRET, "run", 2)):
        other = noisy(seen(50), channel, secret, run, round_)
        assert not (first.rows["items"] == other.rows["items"]).any()
    assert not torch.isin(first.layers["net"], first.rows["items"]).any()


def test_decoys_come_back_in_every_round_and_hide_what_is_needed():
    channel = ChannelSettings(rows="decoys", decoys=50)
    first, second = (rows_to_ask(channel, torch.tensor(ids), 1000, SECRET) for ids in ([3, 9], [3, 700]))
    assert {3, 9} <= set(first.tolist())
    assert len(set(first.tolist()) & set(second.tolist())) >= 50
    assert torch.equal(first, first.unique())
    assert not torch.equal(first, rows_to_ask(channel, torch.tensor([3, 9]), 1000, SECRET[::-1]))


def test_what_is_asked_for_without_hiding_is_what_is_needed_and_all_is_none():
    needed = torch.tensor([1, 5])
    assert torch.equal(rows_to_ask(ChannelSettings(), needed, 10, SECRET), needed)
    assert len(rows_to_ask(ChannelSettings(rows="all"), needed, 10, SECRET)) == 0
    assert len(rows_to_ask(ChannelSettings(secure=True), needed, 10, SECRET)) == 0
