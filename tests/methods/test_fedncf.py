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
from federec.methods.fedncf import FedNCF
from federec.runtimes.simulation import trainer


def network(shared):
    """The state's MLP (8 -> 6 -> 3 -> 1) as torch's layers."""
    layers = []
    for i, (inputs, outputs) in enumerate([(8, 6), (6, 3), (3, 1)]):
        linear = nn.Linear(inputs, outputs)
        linear.weight.data = shared[f"mlp.{i}.weight"].T.clone()
        linear.bias.data = shared[f"mlp.{i}.bias"].clone()
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def test_rounds_equal_plain_neural_collaborative_filtering_client_by_client(random_split):
    method = FedNCF(dim=4, hidden=(6, 3), batch=8, lr=0.3, user_lr=0.5, item_lr_factor=0.1)
    devices = Devices.of(random_split(users=7, items=40), False)
    state = State.start(method, 40, 7, seed=1)
    vectors = [nn.Parameter(user.clone()) for user in state.private["user"]]
    for round_ in (1, 2):
        received = state.copy().shared
        play(method, state, devices, torch.arange(7), 1, round_)
        tables, nets = [], []
        for user, vector in enumerate(vectors):
            rows = nn.Embedding.from_pretrained(received["items"].clone(), freeze=False)
            net = network(received)
            groups = [(net.parameters(), 0.3), ([vector], 0.5), (rows.parameters(), 0.3 * 40 * 0.1)]
            optimiser = optim.SGD([{"params": list(params), "lr": lr} for params, lr in groups])
            samples = draw(devices, torch.tensor([user]), 1, round_, 4)
            for batch in samples.order(0)[0].split(8):
                optimiser.zero_grad()
                row = rows(samples.items[0, batch])
                rating = torch.sigmoid(net(torch.cat([vector.expand(len(batch), 4), row], 1))).squeeze(1)
                nn.BCELoss()(rating, samples.labels[0, batch]).backward()
                optimiser.step()
            tables.append(rows.weight.detach())
            nets.append(net)
        torch.testing.assert_close(state.shared["items"], torch.stack(tables).mean(0), rtol=1e-4, atol=1e-5)
        for i in range(3):
            weights, biases = ([getattr(net[2 * i], part).detach() for net in nets] for part in ("weight", "bias"))
            got = state.shared[f"mlp.{i}.weight"].T, state.shared[f"mlp.{i}.bias"]
            torch.testing.assert_close(got[0], torch.stack(weights).mean(0), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(got[1], torch.stack(biases).mean(0), rtol=1e-4, atol=1e-5)
        users = torch.stack([vector.detach() for vector in vectors])
        torch.testing.assert_close(state.private["user"], users, rtol=1e-4, atol=1e-5)


def test_the_network_is_64_32_16_8_1_and_shared():
    shared = FedNCF().shared()
    assert [shared[f"mlp.{i}.weight"].shape for i in range(4)] == [(64, 32), (32, 16), (16, 8), (8, 1)]
    assert set(FedNCF().private()) == {"user"} and FedNCF().view == "global"


@pytest.mark.parametrize("settings", [{"hidden": ()}, {"hidden": (8, 0)}, {"user_lr": -1}, {"dim": 0}])
def test_senseless_settings_are_refused(settings):
    with pytest.raises(UserError):
        FedNCF(**settings)


def test_it_beats_its_untrained_start_on_tastes():
    split = leave_one_out(generate(users=300, items=500, interactions=12_000))
    worker = trainer(FedNCF(), split, protocol("clean"), 0, engine="fused")
    idle = trainer(FedNCF(lr=0, user_lr=0), split, protocol("clean"), 0).play(1)
    played = [worker.play(round_) for round_ in range(1, 13)]
    assert played[-1].test["sampled"]["hr@10"] > idle.test["sampled"]["hr@10"] + 0.15
    assert played[-1].loss < 0.8 * played[0].loss
