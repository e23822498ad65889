import pytest
import torch
from torch import nn, optim

from federec.cohort.draw import Devices, draw
from federec.data.split import leave_one_out
from federec.data.tastes import generate
from federec.errors import UserError
from federec.evaluation.protocols import protocol
from federec.federation.round import play
from federec.federation.state import State
from federec.methods.fedrecgel import FedRecGEL
from federec.runs.config import RunConfig
from federec.runtimes.simulation import trainer

SHARED = (
    "items_gmf",
    "items_mlp",
    "mlp.0.weight",
    "mlp.0.bias",
    "mlp.1.weight",
    "mlp.1.bias",
    "out.0.weight",
    "out.0.bias",
)
PRIVATE = ("user_gmf", "user_mlp")


def loss(p, items, labels, chunk):
    """NeuMF for one device as its equations have it; the sum of the means over chunks."""
    x = torch.cat([p["user_mlp"].expand(len(items), -1), p["items_mlp"][items]], 1)
    for i in (0, 1):
        x = torch.relu(x @ p[f"mlp.{i}.weight"] + p[f"mlp.{i}.bias"])
    both = torch.cat([p["user_gmf"] * p["items_gmf"][items], x], 1)
    rating = torch.sigmoid(both @ p["out.0.weight"] + p["out.0.bias"]).squeeze(1)
    chunks = zip(rating.split(chunk), labels.split(chunk), strict=True)
    return sum(nn.BCELoss()(r, y) for r, y in chunks)


def gradient(p, names, *data):
    p = {name: value.detach().clone().requires_grad_() for name, value in p.items()}
    return dict(zip(names, torch.autograd.grad(loss(p, *data), [p[name] for name in names]), strict=True))


def sam(p, group, rho, *data):
    """The group's gradient where the group alone is moved by rho along its gradient, one norm over all of it."""
    plain = gradient(p, group, *data)
    norm = torch.cat([g.flatten() for g in plain.values()]).norm()
    return gradient({**p, **{name: p[name] + rho * g / norm for name, g in plain.items()}}, group, *data)


@pytest.mark.parametrize(("rho_shared", "rho_private"), [(0.5, 0.3), (0.5, 0), (0, 0.3), (0, 0)])
def test_rounds_equal_the_published_algorithm_client_by_client(random_split, rho_shared, rho_private):
    sizes = {"dim": 3, "mlp_dim": 4, "hidden": (5, 2), "batch": 8}
    method = FedRecGEL(**sizes, lr=0.1, server_lr=0.01, rho_shared=rho_shared, rho_private=rho_private)
    devices = Devices.of(random_split(users=7, items=20), False)
    state = State.start(method, 20, 7, seed=1)
    for name in ("items_gmf", "items_mlp"):
        state.shared[name] *= 50  # so that gradients are worth comparing
    shared = {name: nn.Parameter(value.clone()) for name, value in state.shared.items()}
    users = [{name: nn.Parameter(state.private[name][u].clone()) for name in PRIVATE} for u in range(7)]
    server = optim.Adam(shared.values(), 0.01)
    local = [optim.Adam(user.values(), 0.1) for user in users]
    for round_, chosen in ((1, [0, 1, 2, 3, 4, 5, 6]), (2, [1, 3, 4]), (3, [0, 1, 4])):
        play(method, state, devices, torch.tensor(chosen), 1, round_)
        sent = []
        for u in chosen:
            samples = draw(devices, torch.tensor([u]), 1, round_, 4)
            order = samples.order(0)[0]
            data = samples.items[0, order], samples.labels[0, order], 8
            p = {**shared, **users[u]}
            sent.append(sam(p, SHARED, rho_shared, *data))
            for name, g in sam(p, PRIVATE, rho_private, *data).items():
                users[u][name].grad = g
            local[u].step()
        for name, value in shared.items():
            value.grad = torch.stack([message[name] for message in sent]).mean(0)
        server.step()
        for name, value in shared.items():
            torch.testing.assert_close(state.shared[name], value.detach(), rtol=1e-3, atol=1e-4)
        for u, user in enumerate(users):
            for name, value in user.items():
                torch.testing.assert_close(state.private[name][u], value.detach(), rtol=1e-3, atol=1e-4)


def test_defaults_are_the_papers():
    shared, method = FedRecGEL().shared(), FedRecGEL()
    assert [shared[f"mlp.{i}.weight"].shape for i in range(3)] == [(256, 128), (128, 64), (64, 32)]
    assert shared["out.0.weight"].shape == (64, 1)
    assert (method.rho_shared, method.rho_private, method.lr, method.server_lr) == (0.02, 0.02, 0.1, 0.001)
    assert RunConfig.checked(method="fedrecgel").participation == 0.1
    assert RunConfig.checked(method="fedrecgel", participation=0.5).participation == 0.5
    assert RunConfig.checked(method="fedmf").participation == 1.0


def test_it_starts_small_with_xavier_layers():
    state = State.start(FedRecGEL(), 500, 2, seed=0)
    assert state.shared["items_mlp"].std() == pytest.approx(0.01, rel=0.05)
    assert state.private["user_mlp"].std() == pytest.approx(0.01, rel=0.2)
    assert state.shared["mlp.0.weight"].abs().max() == pytest.approx(0.125, rel=0.01)  # sqrt(6 / 384)
    assert not state.shared["mlp.0.bias"].any()


@pytest.mark.parametrize("settings", [{"rho_shared": -1}, {"rho_private": -1}, {"hidden": ()}, {"server_lr": -1}])
def test_senseless_settings_are_refused(settings):
    with pytest.raises(UserError):
        FedRecGEL(**settings)


def test_it_beats_its_untrained_start_on_tastes():
    split = leave_one_out(generate(users=300, items=500, interactions=12_000))
    method = FedRecGEL(mlp_dim=16, hidden=(16, 8), server_lr=0.01)
    worker = trainer(method, split, protocol("clean"), 0)
    idle = trainer(method.model_copy(update={"lr": 0.0, "server_lr": 0.0}), split, protocol("clean"), 0).play(1)
    played = [worker.play(round_) for round_ in range(1, 21)]
    assert played[-1].test["sampled"]["hr@10"] > idle.test["sampled"]["hr@10"] + 0.15
    assert played[-1].loss < 0.9 * played[0].loss
