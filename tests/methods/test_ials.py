import itertools

import numpy as np
import pytest
import torch

from federec.methods import ials
from federec.methods.ials import IALS


def history(split):
    x = np.zeros((split.data.n_users, split.data.n_items))
    for user in range(len(x)):
        x[user, split.train[split.ptr[user] : split.ptr[user + 1]]] = 1
    return x


def solve(x, fixed, alpha, l2):
    """A weighted ridge regression for every row of x."""
    rows = []
    for row in x:
        c = np.diag(1 + alpha * row)
        rows.append(np.linalg.solve(fixed.T @ c @ fixed + l2 * np.eye(fixed.shape[1]), fixed.T @ c @ row))
    return np.array(rows)


def objective(x, users, items, alpha, l2):
    return ((1 + alpha * x) * (x - users @ items.T) ** 2).sum() + l2 * ((users**2).sum() + (items**2).sum())


@pytest.mark.parametrize("block", [1, 50, 200_000])
def test_a_sweep_solves_users_then_items(random_split, monkeypatch, block):
    monkeypatch.setattr(ials, "_BLOCK", block)
    split, method = random_split(users=20, items=30), IALS(dim=4, alpha=3.0, l2=2.0)
    x, model = history(split), method.start(split, 5)
    for round_ in (1, 2):
        users = solve(x, model["items"].double().numpy(), 3.0, 2.0)
        items = solve(x.T, users, 3.0, 2.0)
        model = method.refine(model, split, round_)
        np.testing.assert_allclose(model["users"], users, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(model["items"], items, rtol=1e-3, atol=1e-4)
    some = torch.tensor([3, 1])
    np.testing.assert_allclose(method.scores(model, split, some), (users @ items.T)[some], atol=1e-3)


def test_every_sweep_lowers_the_objective(random_split):
    split, method = random_split(users=40, items=50), IALS(dim=6)
    x, model, values = history(split), method.start(split, 0), []
    for round_ in range(1, 8):
        model = method.refine(model, split, round_)
        values.append(objective(x, model["users"].numpy(), model["items"].numpy(), method.alpha, method.l2))
    assert all(later < earlier for earlier, later in itertools.pairwise(values))
    assert values[-1] < x.sum() * (1 + method.alpha)  # better than predicting nothing


def test_the_start_is_a_function_of_the_seed(random_split):
    split, method = random_split(), IALS(dim=3)
    assert torch.equal(method.start(split, 1)["items"], method.start(split, 1)["items"])
    assert not torch.equal(method.start(split, 1)["items"], method.start(split, 2)["items"])
