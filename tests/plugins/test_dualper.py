import pytest
import torch
from torch import nn, optim

from federec.cohort.draw import Devices, draw
from federec.federation.round import play
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.methods.fedmf import FedMF
from federec.methods.pfedrec import PFedRec
from federec.plugins.base import plug
from federec.plugins.dualper import DualPer


def test_on_fedmf_the_vector_steps_first_and_the_rows_with_the_new_vector(random_split):
    method = plug(FedMF, DualPer)(dim=5, batch=8, lr=0.1, item_lr_factor=0.3)
    devices = Devices.of(random_split(users=9, items=40), False)
    state = State.start(method, 40, 9, seed=1)
    vectors = [nn.Parameter(user.clone()) for user in state.private["user"]]
    table = state.shared["items"].clone()
    for round_ in (1, 2):
        play(method, state, devices, torch.arange(9), 1, round_)
        tables = []
        for user, vector in enumerate(vectors):
            rows = nn.Embedding.from_pretrained(table.clone(), freeze=False)
            samples = draw(devices, torch.tensor([user]), 1, round_, 4)
            for batch in samples.order(0)[0].split(8):
                for optimiser in (optim.SGD([vector], 0.1), optim.SGD(rows.parameters(), 0.1 * 40 * 0.3)):
                    vector.grad = rows.weight.grad = None
                    rating = torch.sigmoid(rows(samples.items[0, batch]) @ vector)
                    nn.BCELoss()(rating, samples.labels[0, batch]).backward()
                    optimiser.step()
            tables.append(rows.weight.detach())
        table = torch.stack(tables).mean(0)
        torch.testing.assert_close(state.shared["items"], table, rtol=1e-4, atol=1e-5)
        got = state.private["user"]
        torch.testing.assert_close(got, torch.stack([v.detach() for v in vectors]), rtol=1e-4, atol=1e-5)


def test_on_fedmf_it_differs_from_fedmf_and_ranks_with_own_rows(random_split):
    devices = Devices.of(random_split(), False)
    tables = []
    for method in (FedMF(dim=4, item_lr_factor=1), plug(FedMF, DualPer)(dim=4, item_lr_factor=1)):
        state = State.start(method, 40, 12, seed=1)
        play(method, state, devices, torch.arange(12), 1, 1)
        tables.append(state.shared["items"])
    assert not torch.allclose(*tables)
    assert (FedMF().view, plug(FedMF, DualPer)().view) == ("global", "own")


@pytest.mark.parametrize("hidden", [(), (5, 3)])
def test_pfedrec_has_it_already(random_split, hidden):
    devices, states = Devices.of(random_split(), False), []
    for kind in (PFedRec, plug(PFedRec, DualPer)):
        method = kind(dim=4, hidden=hidden, batch=8, item_lr_factor=0.3)
        states.append(State.start(method, 40, 12, seed=1))
        play(method, states[-1], devices, torch.arange(12), 1, 1)
    assert torch.equal(states[0].shared["items"], states[1].shared["items"])
    assert all(torch.equal(value, states[1].private[name]) for name, value in states[0].private.items())


def test_shared_layers_become_private(device_method):
    assert isinstance(device_method, DeviceMethod)
    if device_method.closed_form or "dualper" in device_method.refuses:
        return  # it fits no such method
    kind = type(device_method)
    dual = (kind if "dualper" in kind.plugins else plug(kind, DualPer))(**device_method.model_dump())
    shared, private = device_method.shared(), device_method.private()
    assert {name for name, p in shared.items() if p.rows} == set(dual.shared())
    assert set(dual.private()) | set(dual.shared()) == {*shared, *private}
