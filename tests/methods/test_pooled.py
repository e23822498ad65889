import pytest
import torch
from torch import nn, optim

from federec.cohort.draw import Devices, draw
from federec.data.split import leave_one_out
from federec.data.tastes import generate
from federec.errors import UserError
from federec.evaluation.protocols import protocol
from federec.methods import pooled
from federec.methods.mf import MF
from federec.methods.ncf import NCF
from federec.methods.pooled import PooledMethod
from federec.runtimes.simulation import trainer


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("cells", [1, 200, 10**6])
def test_an_epoch_holds_every_devices_own_samples_once(random_split, monkeypatch, closed, cells):
    monkeypatch.setattr(pooled, "_CELLS", cells)
    split = random_split(users=11, items=40)
    devices = Devices.of(split, closed)
    batches = list(MF(batch=16).batches(devices, 7, 3))
    assert [len(users) for users, _, _ in batches[:-1]] == [16] * (len(batches) - 1)
    users, items, labels = (torch.cat(column) for column in zip(*batches, strict=True))
    for user in range(11):
        drawn = draw(devices, torch.tensor([user]), 7, 3, 4)
        expected = sorted(zip(drawn.items[0].tolist(), drawn.labels[0].tolist(), strict=True))
        mine = users == user
        assert sorted(zip(items[mine].tolist(), labels[mine].tolist(), strict=True)) == expected
        if closed:
            assert not {int(part.items[user]) for part in (split.test, split.valid)} & set(items[mine].tolist())
    assert users.tolist() != sorted(users.tolist())


def test_the_order_of_an_epoch_does_not_depend_on_how_it_was_drawn(random_split, monkeypatch):
    devices = Devices.of(random_split(), False)
    whole = list(MF(batch=32).batches(devices, 1, 2))
    monkeypatch.setattr(pooled, "_CELLS", 1)
    for one, other in zip(whole, MF(batch=32).batches(devices, 1, 2), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


class PlainMF(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.users = nn.Embedding.from_pretrained(model["users"].clone(), freeze=False)
        self.items = nn.Embedding.from_pretrained(model["items"].clone(), freeze=False)

    def forward(self, users, items):
        return (self.users(users) * self.items(items)).sum(-1)


class PlainNCF(PlainMF):
    def __init__(self, model):
        super().__init__(model)
        layers = []
        for i in range(3):
            weight = model[f"mlp.{i}.weight"]
            linear = nn.Linear(*weight.shape)
            linear.weight.data, linear.bias.data = weight.T.clone(), model[f"mlp.{i}.bias"].clone()
            layers += [linear, nn.ReLU()]
        self.net = nn.Sequential(*layers[:-1])

    def forward(self, users, items):
        return self.net(torch.cat([self.users(users), self.items(items)], -1)).squeeze(-1)


@pytest.mark.parametrize(
    ("method", "plain"),
    [
        (MF(dim=4, batch=32, lr=0.02, scale=0.5), PlainMF),
        (NCF(dim=4, batch=32, lr=0.02, scale=0.5, hidden=(5, 3)), PlainNCF),
    ],
)
def test_rounds_equal_torchs_adam_on_the_plain_model(random_split, method, plain):
    split = random_split(users=9, items=30)
    devices = Devices.of(split, False)
    model = method.start(split, 4)
    reference = plain(model)
    optimiser = optim.Adam(reference.parameters(), lr=0.02)
    for round_ in (1, 2):
        before = {name: value.clone() for name, value in model.items()}
        after = method.learn(model, split, devices, 4, round_)
        assert all(torch.equal(model[name], value) for name, value in before.items())  # the old model is left alone
        for users, items, labels in method.batches(devices, 4, round_):
            optimiser.zero_grad()
            nn.BCEWithLogitsLoss()(reference(users, items), labels).backward()
            optimiser.step()
        model = after
        some = torch.tensor([3, 0, 8])
        expected = reference(some[:, None].expand(3, 30), torch.arange(30).expand(3, 30)).detach()
        torch.testing.assert_close(method.scores(model, split, some), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", [MF(dim=4), NCF(dim=4, hidden=(5, 3)), NCF(dim=4, hidden=(6,))], ids=str)
def test_gradients_equal_autograd(random_split, method):
    split = random_split(users=9, items=30)
    p = {name: value for name, value in method.start(split, 4).items() if "/" not in name}
    batch = next(iter(method.batches(Devices.of(split, False), 4, 1)))
    found, expected = method.gradient(p, *batch), PooledMethod.gradient(method, p, *batch)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("settings", [{"batch": 0}, {"lr": -1.0}, {"negatives": -1}, {"dim": 0}, {"scale": -0.1}])
@pytest.mark.parametrize("method", [MF, NCF])
def test_senseless_settings_are_refused(method, settings):
    with pytest.raises(UserError):
        method(**settings)
    with pytest.raises(UserError):
        NCF(hidden=())


@pytest.mark.parametrize("method", [MF(lr=0.005), NCF(lr=0.005)])
def test_learning_improves_on_the_start_on_tastes(method):
    tastes = leave_one_out(generate(users=300, items=500, interactions=12_000))
    worker = trainer(method, tastes, protocol("clean"), 0)
    idle = trainer(method.model_copy(update={"lr": 0.0}), tastes, protocol("clean"), 0).play(1)
    for round_ in (1, 2, 3):
        played = worker.play(round_)
    assert played.test["sampled"]["hr@10"] > idle.test["sampled"]["hr@10"] + 0.15
