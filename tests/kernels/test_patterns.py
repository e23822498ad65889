import numba
import numpy as np
import pytest
import torch

from federec.kernels.network import Shape, make_net, make_tile, turn
from federec.kernels.patterns import Wanted, add_up, forget, make_patterns, take_in

ROWS, DIM, TILE = 150, 6, 40


@numba.njit
def back(net, gradient, tile, patterns, x, hidden, error, shared, out, pull):
    """As `network.gradient_of`, of rows that went forward."""
    turn(net)
    forget(patterns)
    h = net.top[: len(net.top) - 1]
    for start in range(0, len(x), TILE):
        stop = min(len(x), start + TILE)
        for layer in range(len(hidden)):
            tile.hidden[layer][: stop - start] = hidden[layer][start:stop]
        rows = x[start:stop], tile.hidden, error[start:stop]
        take_in(patterns, *rows, h, net.turned, Wanted(shared, shared, True), pull, out[start:stop])
    add_up(patterns, TILE, shared, gradient.weights, gradient.biases, pull)


@pytest.mark.slow  # tests/federation/test_fused_neural.py compares whole rounds
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("hidden", "patterns"), [((70, 4, 3), range(2, 60)), ((70,), [1])], ids=["three", "one"])
@pytest.mark.parametrize("merge", [True, False])
def test_what_comes_back_is_what_autograd_finds(hidden, patterns, merge, shared):
    shape, random = Shape(0, DIM, hidden), np.random.default_rng(5)
    net, gradient, tile = make_net(shape), make_net(shape), make_tile(shape)
    net.flat[:] = random.normal(size=len(net.flat))
    x, error = (random.normal(size=size).astype(np.float32) for size in ((ROWS, DIM), ROWS))
    net.biases[0][:] -= 3
    x[::7] = 0  # no unit is active there
    net.biases[0][:] = np.minimum(net.biases[0], 0)

    weights = [torch.tensor(w, requires_grad=True) for w in net.weights]
    biases = [torch.tensor(b, requires_grad=True) for b in net.biases]
    t = rows = torch.tensor(x, requires_grad=True)
    outputs = []
    for w, b in zip(weights, biases, strict=True):
        outputs.append((t := (t @ w + b).relu()).detach().numpy())
    (torch.tensor(error) * (t @ torch.tensor(net.top[:-1]))).sum().backward()

    kept = make_patterns(ROWS, TILE, (DIM, *hidden[:-1]), hidden, merge)
    out, pull = np.zeros_like(x), np.zeros(hidden[0], np.float32)
    back(net, gradient, tile, kept, x[9:], tuple(each[9:] for each in outputs), -error[9:], shared, out[9:], pull)
    for each in (gradient.flat, out, pull):  # nothing is left of what came before
        each.fill(0)
    back(net, gradient, tile, kept, x, tuple(outputs), error, shared, out, pull)
    assert kept.count[0] in (patterns if merge else [ROWS])
    close = {"rtol": 1e-4, "atol": 1e-4 * float(weights[0].grad.abs().max())}
    np.testing.assert_allclose(pull, biases[0].grad, **close)
    if shared:
        np.testing.assert_allclose(out, rows.grad, **close)
        assert not out[::7].any() and not rows.grad[::7].any()
        for got, expected in zip((*gradient.weights, *gradient.biases[1:]), (*weights, *biases[1:]), strict=True):
            np.testing.assert_allclose(got, expected.grad, **close)
    else:
        assert not out.any() and not gradient.flat.any()
