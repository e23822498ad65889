import numpy as np
import pytest
import torch

from federec.cohort.draw import Devices
from federec.errors import UserError
from federec.federation.round import play
from federec.federation.state import State
from federec.methods.fcf import FCF

ALPHA, L2, LR = 3.0, 2.0, 0.07


def history(split):
    x = np.zeros((split.data.n_users, split.data.n_items), np.float32)
    for user in range(len(x)):
        x[user, split.train[split.ptr[user] : split.ptr[user + 1]]] = 1
    return torch.from_numpy(x)


def objective(x, users, items):
    fit = ((1 + ALPHA * x) * (x - users @ items.T) ** 2).sum()
    return fit + L2 * ((users**2).sum() + (items**2).sum())


def test_rounds_are_adam_on_the_whole_objective_with_users_solved_for(random_split):
    """The devices' few numbers make the gradient over all (user, item) pairs, observed or not."""
    split = random_split(users=20, items=30)
    method = FCF(dim=4, alpha=ALPHA, l2=L2, lr=LR)
    devices, x = Devices.of(split, False), history(split)
    state = State.start(method, 30, 20, seed=1)
    items = state.shared["items"].clone().requires_grad_()
    adam = torch.optim.Adam([items], lr=LR)
    for round_ in range(1, 6):
        play(method, state, devices, torch.arange(20), 1, round_)
        fixed = items.detach()
        users = []
        for row in x:
            c = torch.diag(1 + ALPHA * row)
            users.append(torch.linalg.solve(fixed.T @ c @ fixed + L2 * torch.eye(4), fixed.T @ c @ row))
        users = torch.stack(users)
        torch.testing.assert_close(state.private["user"], users, rtol=1e-3, atol=1e-4)
        adam.zero_grad()
        objective(x, users, items).backward()
        adam.step()
        torch.testing.assert_close(state.shared["items"], items.detach(), rtol=1e-3, atol=1e-4)


def test_a_gradient_by_hand(split_of):
    """One device with item 0, rows 1 and 2, alpha = l2 = 1: p = 2 / (5 + 1 + 1) = 2/7.

    item 0   -2 * 2 (1 - 2/7) 2/7 + 2 = 2 - 40/49 > 0        item 1   2 (2/7 * 2) 2/7 + 4 > 0
    Adam's first step is lr against the sign.
    """
    method = FCF(dim=1, alpha=1.0, l2=1.0, lr=0.25)
    items = torch.tensor([[1.0], [2.0], [0.0]])
    state = State({"items": items}, {"user": torch.zeros(1, 1)}, server=method.server_start({"items": items}))
    play(method, state, Devices.of(split_of([[0, 1, 2]], 3), False), torch.tensor([0]), 0, 1)
    assert state.shared["items"].squeeze(1).tolist() == pytest.approx([0.75, 1.75, 0.0], abs=1e-5)
    gradient = state.server["m"].squeeze(1) / 0.1
    assert gradient.tolist() == pytest.approx([2 - 40 / 49, 16 / 49 + 4, 0.0], abs=1e-5)


def test_bytes_dense_and_sparse(split_of):
    """Width 3: half a matrix is 6 values. Histories of 3 and 1 of 6 items."""
    devices = Devices.of(split_of([[0, 1, 2, 4, 5], [3, 4, 5]], 6), False)
    reports = {}
    for upload in ("dense", "sparse"):
        method = FCF(dim=3, upload=upload)
        reports[upload] = play(method, State.start(method, 6, 2, 0), devices, torch.arange(2), 0, 1)
    assert reports["dense"].up_bytes == 4 * (6 + 6 * 3)
    assert reports["sparse"].up_bytes == 4 * 6 + 2 * (4 + 4 * 3)


@pytest.mark.parametrize("settings", [{"lr": 0}, {"dim": 0}, {"alpha": -1}, {"l2": 0}, {"negatives": 4}])
def test_senseless_settings_are_refused(settings):
    with pytest.raises(UserError):
        FCF(**settings)
