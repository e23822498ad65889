import pytest
import torch

from federec.mathematics.decay import running


@pytest.mark.parametrize("fall", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("length", [0, 1, 64, 65, 150])
def test_a_running_sum_fades_from_block_to_block(length, fall):
    x = torch.randn(2, length, 3, generator=torch.Generator().manual_seed(length))
    expected, last = torch.zeros_like(x), torch.zeros(2, 3)
    for t in range(length):
        last = expected[:, t] = fall * last + x[:, t]
    torch.testing.assert_close(running(x, fall), expected, rtol=1e-4, atol=1e-5)
