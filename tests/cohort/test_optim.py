import pytest
import torch

from federec.cohort.optim import Adam, sgd_


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 3, 2), (5, 1)])
def test_adam_is_torchs_adam_device_by_device(shape):
    torch.manual_seed(0)
    value = torch.randn(shape)
    steps = [7, 7, 4, 1, 0]  # of each device: a falling number, as in a cohort
    singles = [value[i].clone().requires_grad_() for i in range(5)]
    optimisers = [torch.optim.Adam([single], lr=0.05) for single in singles]
    moments = Adam.moments(value)
    for turn in range(7):
        active = sum(n > turn for n in steps)
        gradient = torch.randn(active, *shape[1:]) * 10 ** (turn - 3.0)
        m, v, t = (moments[part][:active] for part in "mvt")
        Adam().step_(value[:active], gradient, m, v, t, 0.05)
        for i in range(active):
            singles[i].grad = gradient[i].clone()
            optimisers[i].step()
    torch.testing.assert_close(value, torch.stack([s.detach() for s in singles]), rtol=1e-4, atol=1e-6)
    assert moments["t"].tolist() == steps


def test_sgd_moves_a_slice_in_place():
    value = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    sgd_(value[:2], torch.tensor([[1.0, -1.0], [2.0, 0.0]]), 0.5)
    assert value.tolist() == [[0.5, 2.5], [2.0, 4.0], [5.0, 6.0]]
