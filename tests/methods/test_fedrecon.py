import math

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
from federec.methods.fedrecon import FedRecon
from federec.runtimes.simulation import trainer


@pytest.mark.parametrize("disjoint", [True, False])
def test_rounds_equal_plain_reconstruction_client_by_client(random_split, disjoint):
    method = FedRecon(dim=5, batch=6, lr=0.4, passes=3, item_lr_factor=0.1, epochs=2, disjoint=disjoint)
    devices = Devices.of(random_split(users=9, items=40), False)
    state = State.start(method, 40, 9, seed=1)
    for round_ in (1, 2):
        table = state.shared["items"].clone()
        play(method, state, devices, torch.arange(9), 1, round_)
        tables = []
        for user in range(9):
            samples = draw(devices, torch.tensor([user]), 1, round_, 4)
            order = samples.order(0)[0]
            half = math.ceil(len(order) / 2)
            vector = nn.Parameter(torch.zeros(5))
            rows = nn.Embedding.from_pretrained(table.clone(), freeze=False)
            support = [batch for _ in range(3) for batch in order[:half].split(6)]
            query = [batch for _ in range(2) for batch in order[half if disjoint else 0 :].split(6)]
            for batches, optimiser in (
                (support, optim.SGD([vector], 0.4)),
                (query, optim.SGD(rows.parameters(), 40 * 0.1)),
            ):
                for batch in batches:
                    vector.grad = rows.weight.grad = None
                    rating = torch.sigmoid(rows(samples.items[0, batch]) @ vector)
                    nn.BCELoss()(rating, samples.labels[0, batch]).backward()
                    optimiser.step()
            tables.append(rows.weight.detach())
            torch.testing.assert_close(state.private["user"][user], vector.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state.shared["items"], torch.stack(tables).mean(0), rtol=1e-4, atol=1e-5)


def test_a_device_forgets_its_vector(random_split):
    method, devices = FedRecon(dim=4, batch=8), Devices.of(random_split(), False)
    start = State.start(method, 40, 12, seed=1)
    other = start.copy()
    other.private["user"] += torch.randn(12, 4)
    for state in (start, other):
        play(method, state, devices, torch.arange(12), 1, 1)
    assert torch.equal(start.private["user"], other.private["user"])
    assert torch.equal(start.shared["items"], other.shared["items"])


@pytest.mark.parametrize("settings", [{"passes": 0}, {"lr": -1}, {"item_lr_factor": -1}, {"dim": 0}])
def test_senseless_settings_are_refused(settings):
    with pytest.raises(UserError):
        FedRecon(**settings)


def test_it_beats_its_untrained_start_on_tastes():
    split = leave_one_out(generate(users=300, items=500, interactions=12_000))
    worker = trainer(FedRecon(), split, protocol("clean"), 0)
    idle = trainer(FedRecon(item_lr_factor=0), split, protocol("clean"), 0).play(1)
    played = [worker.play(round_) for round_ in range(1, 9)]
    assert played[-1].test["sampled"]["hr@10"] > idle.test["sampled"]["hr@10"] + 0.15
    assert played[-1].loss < 0.9 * played[0].loss
