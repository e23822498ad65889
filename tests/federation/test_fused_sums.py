import numpy as np
import pytest
import torch

from federec import streams
from federec.checks.engines import engines_agree
from federec.cohort.draw import Devices
from federec.federation.channel import Link
from federec.federation.engine import why_not
from federec.kernels.noise import BLOCK, laplace_sum, make_products
from federec.plugins.registry import build
from federec.stages.noise import laplace
from federec.stages.randomness import Simulated
from federec.stages.registry import channel, stage

SMALL = {
    "fednext-projected": {"dim": 4, "sweeps": 1, "half_lives": [[1.0, 0.0]], "laplace": 0.01},
}


@pytest.mark.parametrize("count", [1, 60, 150])
def test_a_sum_of_noise_is_that_of_all_devices(count):
    keys, first, width = streams.keys(3, 2, torch.arange(count)), streams.LAPLACE + (1 << 36), 8 * BLOCK + 3
    owner, found = torch.arange(count), np.empty(width, np.float32)
    laplace_sum(make_products(), keys.numpy().view(np.uint64), first, np.float32(0.5), found)
    drawn = laplace(Simulated(keys), owner, first, torch.zeros_like(owner), width)
    torch.testing.assert_close(torch.from_numpy(found), 0.5 * drawn.double().sum(0).float(), rtol=1e-6, atol=1e-5)


@pytest.fixture(scope="module")
def devices(split_of):
    """Devices of many lengths, more than the factors of one product."""
    random = np.random.default_rng(4)
    return Devices.of(split_of([random.permutation(90)[:n] for n in (90, 2, 3, 40) * 20], 90), True)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("users", [None, [1, 4, 0, 7, 8]], ids=["all", "some"])
@pytest.mark.parametrize("name", SMALL)
def test_the_kernel_plays_the_same_rounds(devices, name, users, threads):
    users = None if users is None else torch.tensor(users)
    torch.set_num_threads(threads)
    try:
        engines_agree(build(name, ("ldp",), SMALL[name]), devices, users, range(1, 3))
    finally:
        torch.set_num_threads(1)


def test_the_kernel_is_only_for_noise():
    method = build("fednext-projected", (), {})
    assert "without noise" in why_not(method, 40, "cpu")
    assert why_not(method, 40, "cpu", Link.of(method, [stage(one) for one in channel("laplace:scale=0.1")])) is None
