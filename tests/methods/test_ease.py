import numpy as np
import pytest
import torch

from federec.methods import ease
from federec.methods.ease import EASE


def history(split):
    x = np.zeros((split.data.n_users, split.data.n_items))
    for user in range(len(x)):
        x[user, split.train[split.ptr[user] : split.ptr[user + 1]]] = 1
    return x


def item_by_item(x, l2):
    """Each item regressed on all the others, one ridge regression at a time."""
    n = x.shape[1]
    weights = np.zeros((n, n))
    for k in range(n):
        rest = [j for j in range(n) if j != k]
        a = x[:, rest]
        weights[rest, k] = np.linalg.solve(a.T @ a + l2 * np.eye(n - 1), a.T @ x[:, k])
    return weights


@pytest.mark.parametrize("block", [1, 7, 512])
def test_weights_are_ridge_regressions_without_the_item_itself(random_split, monkeypatch, block):
    monkeypatch.setattr(ease, "_BLOCK", block)
    split, method = random_split(users=30, items=25), EASE(l2=(3.0, 11.0))
    x = history(split)
    for round_, l2 in ((1, 3.0), (2, 11.0)):
        model = method.refine({}, split, round_)
        expected = item_by_item(x, l2)
        np.testing.assert_allclose(model["weights"], expected, atol=1e-5)
        assert model["weights"].diagonal().abs().max() == 0
        some = torch.tensor([4, 0, 29])
        np.testing.assert_allclose(method.scores(model, split, some), (x @ expected)[some], atol=1e-4)
