import itertools
import math

import pytest
import torch
from torch import nn

from federec.cohort.layers import ITEMS, Param, dot, hidden, item_rows, mlp, mlp_params


@pytest.mark.parametrize("widths", [(6, 1), (6, 5, 1), (6, 5, 3, 1)])
def test_mlp_is_torchs_layers_device_by_device(widths):
    torch.manual_seed(0)
    specs = mlp_params("net", widths)
    p = {name: torch.randn(3, *spec.shape) for name, spec in specs.items()}
    p["network.0.weight"] = torch.zeros(3, 2, 2)  # a longer name that begins alike is another network
    x = torch.randn(3, 4, widths[0])
    for c in range(3):
        layers = []
        for i, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            linear = nn.Linear(inputs, outputs)
            linear.weight.data = p[f"net.{i}.weight"][c].T
            linear.bias.data = p[f"net.{i}.bias"][c]
            layers += [linear, nn.ReLU()]
        expected = nn.Sequential(*layers[:-1])(x[c]).squeeze(1).detach()
        torch.testing.assert_close(mlp(p, "net", x)[c], expected)


def test_dot_is_an_inner_product_for_every_item():
    user = torch.tensor([[1.0, 2.0], [0.0, -1.0]])
    rows = torch.tensor([[[1.0, 1.0], [2.0, 0.0]], [[5.0, 3.0], [7.0, 0.0]]])
    assert dot(user, rows).tolist() == [[3.0, 2.0], [-3.0, 0.0]]


def test_layers_start_like_torchs_linear():
    specs = mlp_params("net", (100, 40, 1))
    assert {name: spec.shape for name, spec in specs.items()} == {
        "net.0.weight": (100, 40),
        "net.0.bias": (40,),
        "net.1.weight": (40, 1),
        "net.1.bias": (1,),
    }
    start = specs["net.0.weight"].start(7, torch.Generator().manual_seed(0))
    bound = 1 / math.sqrt(100)
    assert start.abs().max() <= bound
    assert start.std() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert start.mean().abs() < 0.05 * bound


def test_item_rows_start_standard_normal_and_zeros_are_zeros():
    rows = item_rows(50).start(200, torch.Generator().manual_seed(0))
    assert rows.shape == (200, 50)
    assert rows.mean().abs() < 0.05 and rows.std() == pytest.approx(1, rel=0.05)
    assert torch.equal(Param((3,), "zeros", rows=True).start(4, torch.Generator()), torch.zeros(4, 3))
    small = Param((1000,), "normal", 0.01).start(4, torch.Generator().manual_seed(0))
    assert small.shape == (1000,) and small.std() == pytest.approx(0.01, rel=0.1)


def test_a_start_is_a_function_of_the_generator():
    first, again, other = (item_rows(4).start(5, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_a_shape_may_name_the_number_of_items():
    generator = torch.Generator().manual_seed(0)
    assert Param((ITEMS, 2), "zeros").start(5, generator).shape == (5, 2)
    assert Param((ITEMS,), rows=True).start(5, generator).shape == (5, 5)


def test_a_user_vector_stands_before_every_input():
    torch.manual_seed(0)
    p = {name: torch.randn(3, *spec.shape) for name, spec in mlp_params("net", (2 + 6, 5, 3, 1)).items()}
    user, x = torch.randn(3, 2), torch.randn(3, 4, 6)
    both = torch.cat([user[:, None].expand(3, 4, 2), x], 2)
    torch.testing.assert_close(mlp(p, "net", x, user), mlp(p, "net", both))
    first = torch.einsum("cbi,cio->cbo", both, p["net.0.weight"]) + p["net.0.bias"][:, None]
    torch.testing.assert_close(hidden(p, "net", x, 1, user), first.clamp(min=0))


def test_xavier_layers_start_within_their_bound_and_without_bias():
    specs = mlp_params("net", (100, 50), xavier=True)
    weight, bias = (specs[f"net.0.{part}"].start(7, torch.Generator().manual_seed(0)) for part in ("weight", "bias"))
    assert 0.19 < weight.abs().max() <= 0.2  # sqrt(6 / 150)
    assert torch.equal(bias, torch.zeros(50))
