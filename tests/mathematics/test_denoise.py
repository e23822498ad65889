import pytest
import torch

from federec.mathematics.denoise import denoised, noise_of


def low_rank(n=200, rank=3, seed=0):
    factors = torch.randn(n, rank, generator=torch.Generator().manual_seed(seed))
    return factors @ factors.T


def noisy(matrix, deviation, seed=1):
    return matrix + deviation * torch.randn(matrix.shape, generator=torch.Generator().manual_seed(seed))


def test_the_noise_is_known_from_what_is_not_symmetric():
    assert noise_of(low_rank()) == 0.0 and noise_of(torch.zeros(3, 3)) == 0.0 and noise_of(torch.ones(1, 1)) == 0.0
    assert noise_of(noisy(low_rank(), 2.0)) == pytest.approx(2.0 / 2**0.5, rel=0.02)  # of (G + G') / 2


def test_signal_comes_back_and_noise_alone_gives_little():
    signal, given = low_rank(), noisy(low_rank(), 2.0)
    noise = noise_of(given)
    found = denoised((given + given.T) / 2, noise)
    assert torch.linalg.matrix_rank(found) == 3
    assert float((found - signal).norm()) < 0.25 * float(((given + given.T) / 2 - signal).norm())
    alone = noisy(torch.zeros(200, 200), 2.0)
    assert torch.linalg.matrix_rank(denoised((alone + alone.T) / 2, 1.02 * noise_of(alone))) == 1
