import pytest
import torch
from torch import nn

from federec.cohort.draw import Devices, draw
from federec.data.split import leave_one_out
from federec.data.tastes import generate
from federec.errors import UserError
from federec.evaluation.protocols import protocol
from federec.federation.round import play
from federec.federation.state import State
from federec.methods.fedmf import FedMF
from federec.methods.local_only import LocalOnly
from federec.methods.pfedrec import PFedRec
from federec.plugins.base import plug
from federec.plugins.registry import build
from federec.plugins.sam import SAM
from federec.runtimes.simulation import trainer


def gradients(loss, values):
    values = {name: value.detach().clone().requires_grad_() for name, value in values.items()}
    return dict(zip(values, torch.autograd.grad(loss(values), values.values()), strict=True))


def sam_gradients(loss, values, groups):
    """SAM as written down: every group is moved alone, by its rho along its part of one and the same gradient."""
    plain, found = gradients(loss, values), {}
    for group, rho in groups:
        norm = torch.cat([plain[name].flatten() for name in group]).norm()
        moved = {**values, **{name: values[name] + rho * plain[name] / norm for name in group}}
        found |= {name: gradients(loss, moved)[name] for name in group}
    return found


@pytest.mark.parametrize(("rho_shared", "rho_private"), [(0.3, 0.2), (0.3, 0), (0, 0.2)])
def test_on_fedmf_it_equals_sam_on_every_client_alone(random_split, rho_shared, rho_private):
    """Few items and many negatives: most batches hold an item twice, and its row counts once in the norm."""
    sizes = {"dim": 3, "batch": 16, "negatives": 6, "lr": 0.1, "item_lr_factor": 0.5}
    method = plug(FedMF, SAM)(**sizes, rho_shared=rho_shared, rho_private=rho_private)
    devices = Devices.of(random_split(users=6, items=12, least=5, most=9), False)
    state = State.start(method, 12, 6, seed=1)
    vectors = list(state.private["user"].clone())
    twice = False
    for round_ in (1, 2):
        received, tables = state.shared["items"].clone(), []
        play(method, state, devices, torch.arange(6), 1, round_)
        for user in range(6):
            p = {"user": vectors[user], "items": received}
            samples = draw(devices, torch.tensor([user]), 1, round_, 6)
            for batch in samples.order(0)[0].split(16):
                items, labels = samples.items[0, batch], samples.labels[0, batch]
                twice = twice or len(items.unique()) < len(items)

                def loss(p, items=items, labels=labels):
                    return nn.BCELoss()(torch.sigmoid(p["items"][items] @ p["user"]), labels)

                g = sam_gradients(loss, p, [(["items"], rho_shared), (["user"], rho_private)])
                p = {"user": p["user"] - 0.1 * g["user"], "items": p["items"] - 0.1 * 12 * 0.5 * g["items"]}
            vectors[user] = p["user"]
            tables.append(p["items"])
        torch.testing.assert_close(state.shared["items"], torch.stack(tables).mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state.private["user"], torch.stack(vectors), rtol=1e-4, atol=1e-5)
    assert twice


def test_a_step_worked_by_hand(split_of):
    """One device: positive 0, negative 3 (the only open item); rows 2 and -1, p = 1/2, rho_private = 0.1 alone.

    gradient of p    ((sigma(1) - 1) * 2 + sigma(-1/2) * -1) / 2 = -0.457712, so p is moved to 0.5 - 0.1 = 0.4
    gradient there   ((sigma(0.8) - 1) * 2 + sigma(-0.4) * -1) / 2 = (-0.620051 - 0.401312) / 2 = -0.510682
    step             p = 0.5 + 0.1 * 0.510682 = 0.551068
    rows             at p = 1/2: 2 + 0.134471 * 0.5 = 2.067235 and -1 - 0.188770 * 0.5 = -1.094385  (step 0.1 * 4 * 2.5)
    """
    method = plug(FedMF, SAM)(dim=1, negatives=1, lr=0.1, item_lr_factor=2.5, rho_shared=0, rho_private=0.1)
    devices = Devices.of(split_of([[0, 1, 2]], 4), close_held_out=True)
    state = State({"items": torch.tensor([[2.0], [9.0], [9.0], [-1.0]])}, {"user": torch.tensor([[0.5]])})
    report = play(method, state, devices, torch.tensor([0]), 0, 1)
    assert state.private["user"].item() == pytest.approx(0.551068, abs=1e-6)
    assert state.shared["items"].squeeze().tolist() == pytest.approx([2.067235, 9, 9, -1.094385], abs=1e-6)
    plain = -torch.tensor([0.731059, 1 - 0.377541]).log().mean()  # the loss where the device is, not uphill
    assert report.loss == pytest.approx(float(plain), abs=1e-5)


@pytest.mark.thorough
def test_without_radii_it_is_the_method_below_to_the_last_bit(device_method, random_split):
    kind = type(device_method)
    if "sam" in kind.plugins or device_method.closed_form or device_method.name == "fedrecgel" or "sam" in kind.refuses:
        pytest.skip("has no method below to compare with")
    settings, devices, states = device_method.model_dump(), Devices.of(random_split(), False), []
    for method in (device_method, plug(kind, SAM)(**settings, rho_shared=0, rho_private=0)):
        states.append(State.start(method, 40, 12, seed=1))
        for round_ in (1, 2):
            play(method, states[-1], devices, torch.arange(12), 1, round_)
    flat = [state.tensors() for state in states]
    assert all(torch.equal(value, flat[1][name]) for name, value in flat[0].items())


def test_a_private_item_table_is_in_the_private_group(random_split):
    devices = Devices.of(random_split(), False)
    flats = {}
    for rho in ((0, 0), (0.5, 0), (0, 0.5)):
        method = plug(LocalOnly, SAM)(dim=3, batch=8, item_lr_factor=0.3, rho_shared=rho[0], rho_private=rho[1])
        state = State.start(method, 40, 12, seed=1)
        play(method, state, devices, torch.arange(12), 1, 1)
        flats[rho] = state.tensors()["store:items:rows"]
    assert torch.equal(flats[0, 0], flats[0.5, 0]) and not torch.allclose(flats[0, 0], flats[0, 0.5])


def test_bad_radii_and_a_method_that_has_them_already_are_refused():
    with pytest.raises(UserError):
        plug(FedMF, SAM)(rho_shared=-0.1)
    with pytest.raises(UserError, match="rho_private=-1"):
        build("fedmf", ["sam"], {"rho_private": -1})
    with pytest.raises(UserError, match="plug-in 'sam' does not fit 'fedrecgel'"):
        build("fedrecgel", ["sam"])


def test_pfedrec_with_it_beats_its_untrained_start_on_tastes():
    split = leave_one_out(generate(users=300, items=500, interactions=12_000))
    worker = trainer(plug(PFedRec, SAM)(), split, protocol("clean"), 0, engine="fused")
    idle = trainer(plug(PFedRec, SAM)(lr=0), split, protocol("clean"), 0).play(1)
    played = [worker.play(round_) for round_ in range(1, 16)]
    assert played[-1].test["sampled"]["hr@10"] > idle.test["sampled"]["hr@10"] + 0.15
