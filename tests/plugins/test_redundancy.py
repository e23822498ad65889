import pytest
import torch

from federec.plugins.plgc import redundancy


def test_redundancy_worked_by_hand():
    """Four items. Dimensions (1, 1, -1, -1) and (1, -1, 1, -1) do not depend on each other; twice the first do."""
    first, second = [1.0, 1.0, -1.0, -1.0], [1.0, -1.0, 1.0, -1.0]
    apart, alike = (torch.tensor([[first, other]]).mT for other in (second, first))
    once = torch.ones(1, 4)
    assert redundancy(3 * apart + 1, apart, once, 0.5)[0].item() == pytest.approx(0, abs=1e-5)
    assert redundancy(alike, alike, once, 0.5)[0].item() == pytest.approx(0.5 * 2, abs=1e-5)
    assert redundancy(-apart, apart, once, 0.5)[0].item() == pytest.approx(2 * 4, abs=1e-4)
    doubled = apart[:, [0, 1, 2, 3, 3]]  # the last item twice, counted once
    value, _ = redundancy(doubled, doubled, torch.tensor([[1, 1, 1, 0.5, 0.5]]), 0.5)
    assert value.item() == pytest.approx(0, abs=1e-5)


def test_the_gradient_of_redundancy_is_the_one_that_autograd_finds():
    """Rows with means and scales of their own; an item three times, padding that counts nothing."""
    generator = torch.Generator().manual_seed(3)
    local, server = (torch.randn(2, 9, 4, generator=generator, dtype=torch.float64) * 2 + 1 for _ in range(2))
    once = torch.tensor([[1, 1, 1, 1 / 3, 1 / 3, 1 / 3, 1, 0, 0], [1.0] * 9], dtype=torch.float64)

    def plain(rows):
        share = (once / once.sum(1, keepdim=True))[:, :, None]
        standard = []
        for values in (rows, server):
            centred = values - (values * share).sum(1, keepdim=True)
            standard.append(centred / ((centred.square() * share).sum(1, keepdim=True) + 1e-6).sqrt())
        x = (standard[0] * share).mT @ standard[1]
        own = x.diagonal(dim1=1, dim2=2)
        return (1 - own).square().sum(1) + 0.3 * (x.square().sum((1, 2)) - own.square().sum(1))

    local.requires_grad_()
    expected = plain(local)
    value, gradient = redundancy(local.detach(), server, once, 0.3)
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(gradient, *torch.autograd.grad(expected.sum(), local))
