import pytest
import torch

from federec.cohort.optim import Adam, server_adam, server_moments, sgd_


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


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_servers_adam_is_torchs_adamw(decay):
    """On several parameters at once, of which one has no gradient in some rounds."""
    torch.manual_seed(0)
    shared = {"a": torch.randn(3, 2), "b": torch.randn(4), "c": torch.randn(1)}
    memory = server_moments({name: shared[name] for name in "ab"})
    leaves = {name: value.clone().requires_grad_() for name, value in shared.items()}
    adam = torch.optim.AdamW(leaves.values(), 0.1, weight_decay=decay)
    first = dict(shared)
    for turn in range(5):
        gradients = {name: torch.randn_like(shared[name]) for name in ("ab" if turn % 2 else "a")}
        shared = server_adam(shared, gradients, memory, 0.1, decay=decay)
        for name, leaf in leaves.items():
            leaf.grad = gradients.get(name)
        adam.step()
    for name, leaf in leaves.items():
        torch.testing.assert_close(shared[name], leaf.detach())
    assert shared["c"] is first["c"]
    assert server_adam(shared, {}, memory, 0.1) == shared
