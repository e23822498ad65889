import pytest
import torch

from federec.stages.noise import laplace as drawn
from federec.stages.noise import quantiles
from federec.stages.randomness import Simulated


def laplace(key, first, row, width):
    return drawn(Simulated(key), torch.arange(len(key)), first, row, width)


def test_the_noise_is_laplaces():
    """Mean 0, mean size 1, variance 2, P(|x| > 3) = exp(-3); symmetric, never 0 or infinite."""
    key = torch.arange(1, 4001)
    noise = laplace(key, 0, torch.zeros_like(key), 100)
    assert noise.mean().abs() < 0.01
    assert noise.abs().mean() == pytest.approx(1, abs=0.01)
    assert noise.var() == pytest.approx(2, abs=0.04)
    assert (noise.abs() > 3).float().mean() == pytest.approx(0.0498, abs=0.002)
    torch.testing.assert_close(quantiles().flip(0), -quantiles())
    assert quantiles().abs().min() > 0 and float(quantiles().max()) == pytest.approx(11.09, abs=0.01)


def test_the_noise_depends_on_its_draw_alone():
    key, row = torch.arange(1, 201), torch.arange(200) % 7
    noise = laplace(key, 0, row, 50)
    assert torch.equal(laplace(key[7:9], 0, row[7:9], 50), noise[7:9])
    for other in (laplace(key, 1 << 36, row, 50), laplace(key, 0, row + 1, 50), laplace(key + 1, 0, row, 50)):
        assert not (other == noise).all(1).any()
