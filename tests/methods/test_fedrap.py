import math

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy

from federec.cohort.draw import Devices, draw
from federec.data.split import leave_one_out
from federec.data.tastes import generate
from federec.errors import UserError
from federec.evaluation.protocols import protocol
from federec.federation.device import cohorts
from federec.federation.round import play
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.methods.fedrap import FedRAP
from federec.runtimes.simulation import trainer

QUIET = {"lr": 0.1, "item_lr": 3.0, "v1": 0.2, "v2": 0.3, "dim": 4, "weight_decay": 0.01}


class Client:
    """A device in plain torch: dense tables, its own layer, one optimiser."""

    def __init__(self, method, state):
        self.method = method
        own = state.stores["own"].start if method.parts != "common" else torch.zeros(40, method.dim)
        self.own = nn.Parameter(own.clone())
        self.weight = nn.Parameter(state.private["score.0.weight"][0, :, 0].clone())
        self.bias = nn.Parameter(state.private["score.0.bias"][0].clone())

    def loss(self, common, items, labels, away, small):
        method, c, d = self.method, common[items], self.own[items]
        rows = {"both": c + d, "common": c, "own": d}[method.parts]
        loss = binary_cross_entropy(torch.sigmoid(rows @ self.weight + self.bias), labels)
        if method.parts == "both":
            loss = loss - away * ((d - c) ** 2).mean()
        if method.parts != "own":
            nuclear = torch.linalg.svdvals(c).sum() / len(c) ** 0.5 / method.dim
            loss = loss + small * {"l1": c.abs().mean(), "l2": (c**2).mean(), "nuclear": nuclear}[method.norm]
        return loss

    def learn(self, common, samples, round_, s):
        """The device's copy of C after the round, and how many passes it made."""
        method, common = self.method, nn.Parameter(common.clone())
        held = torch.zeros(40, 1)
        held[samples.items[0]] = 1
        pace, losses, total, seen = method.round_decay ** (round_ - 1), [], 0.0, 0
        for epoch in range(method.epochs):
            for batch in samples.order(epoch)[0].split(method.batch):
                params = {
                    self.own: method.item_lr,
                    common: method.item_lr,
                    self.weight: method.lr,
                    self.bias: method.lr,
                }
                loss = self.loss(
                    common, samples.items[0, batch], samples.labels[0, batch], method.v1 * s, method.v2 * s
                )
                gradients = torch.autograd.grad(loss, list(params), allow_unused=True)
                for (value, rate), gradient in zip(params.items(), gradients, strict=True):
                    if gradient is not None:
                        keep = held if value.dim() == 2 else 1.0
                        value.data -= rate * pace * (gradient + method.weight_decay * keep * value.data)
                pace *= method.step_decay
                total, seen = total + float(loss.detach()) * len(batch), seen + len(batch)
            losses.append(total / seen)
            if epoch and abs(losses[-1] - losses[-2]) < method.tolerance * abs(losses[-2]):
                break
        return common.detach(), len(losses)


@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 2048},
        {"batch": 16},
        {"batch": 2048, "norm": "l2"},
        {"batch": 2048, "norm": "nuclear"},
        {"batch": 2048, "parts": "common"},
        {"batch": 16, "parts": "own"},
    ],
    ids=str,
)
def test_rounds_equal_the_algorithm_client_by_client(random_split, settings):
    method = FedRAP(**QUIET | {"tolerance": 0.01, "epochs": 6} | settings)
    devices = Devices.of(random_split(users=9, items=40), False)
    state = State.start(method, 40, 9, seed=1)
    clients = [Client(method, state) for _ in range(9)]
    common, passes = state.shared.get("common", torch.zeros(40, 4)), set()
    for round_ in (4, 5):
        play(method, state, devices, torch.arange(9), 1, round_)
        sent = []
        for user, client in enumerate(clients):
            samples = draw(devices, torch.tensor([user]), 1, round_, 4)
            learned, count = client.learn(common, samples, round_, math.tanh((round_ - 1) / 10))
            sent.append(learned)
            passes.add(count)
        common = torch.stack(sent).mean(0)
        if method.parts != "own":
            torch.testing.assert_close(state.shared["common"], common, rtol=1e-3, atol=1e-4)
        for user, client in enumerate(clients):
            if method.parts != "common":
                own = state.stores["own"].take(
                    torch.tensor([user]), torch.zeros(40, dtype=torch.int64), torch.arange(40)
                )
                torch.testing.assert_close(own, client.own.detach(), rtol=1e-3, atol=1e-4)
            layer = state.private["score.0.weight"][user, :, 0], state.private["score.0.bias"][user]
            torch.testing.assert_close(layer, (client.weight.detach(), client.bias.detach()), rtol=1e-3, atol=1e-4)
    if settings == {"batch": 2048}:
        assert len(passes) > 1  # devices stop at different times


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("batch", [8, 2048])
def test_gradients_in_closed_form_are_autograds(random_split, norm, batch):
    method = FedRAP(**QUIET, norm=norm, batch=batch)
    state = State.start(method, 40, 12, seed=1)
    cohort = next(cohorts(method, state, Devices.of(random_split(), False), torch.arange(12), 0, 7))
    names = ["own", "score.0.bias", "common", "score.0.weight"]
    for step in (*cohort.steps(batch), cohort.whole(2048)):
        loss, found = method.derive(step.values(), step, names)
        expected, gradient = DeviceMethod.derive(method, step.values(), step, names)
        torch.testing.assert_close(loss, expected)
        assert list(found) == names
        for name in names:
            torch.testing.assert_close(found[name], gradient[name], rtol=1e-4, atol=1e-6)


def test_a_round_worked_by_hand(split_of):
    """One device: positive 0 (c = 1.5, d = 0.5), negative 3 (c = -2, d = 1); w = 1/2, b = 0; v1 = 1/2, v2 = 1/4.

    errors    (sigma(1) - 1) / 2 = -0.134471           sigma(-1/2) / 2 = 0.188770
    pulled    -0.067236                                0.094385                      error * w
    pushed    2 v1 (d - c) / 2 = -0.5                  1.5                           apart: from d, to c
    sparse    v2 sign(c) / 2 = 0.125                   -0.125
    d         0.5 + 0.067236 - 0.5 = 0.067236          1 - 0.094385 + 1.5 = 2.405615
    c         1.5 + 0.067236 + 0.5 - 0.125 = 1.942236  -2 - 0.094385 - 1.5 + 0.125 = -3.469385
    loss      (0.313262 + 0.474077) / 2 - v1 (1 + 9) / 2 + v2 (1.5 + 2) / 2 = -1.668831
    """
    method = FedRAP(dim=1, negatives=1, epochs=1, lr=0.1, item_lr=1, v1=0.5, v2=0.25, schedule="fixed", weight_decay=0)
    devices = Devices.of(split_of([[0, 1, 2]], 4), close_held_out=True)
    state = State.start(method, 4, 1, seed=0)
    state.shared["common"] = torch.tensor([[1.5], [9.0], [9.0], [-2.0]])
    state.stores["own"].start = torch.tensor([[0.5], [9.0], [9.0], [1.0]])
    state.private = {"score.0.weight": torch.tensor([[[0.5]]]), "score.0.bias": torch.tensor([[0.0]])}
    report = play(method, state, devices, torch.tensor([0]), 0, 1)
    own = state.stores["own"].take(torch.tensor([0]), torch.zeros(4, dtype=torch.int64), torch.arange(4))
    assert own.squeeze(1).tolist() == pytest.approx([0.067236, 9, 9, 2.405615], abs=1e-5)
    assert state.shared["common"].squeeze(1).tolist() == pytest.approx([1.942236, 9, 9, -3.469385], abs=1e-5)
    assert state.private["score.0.weight"].item() == pytest.approx(0.545771, abs=1e-6)
    assert state.private["score.0.bias"].item() == pytest.approx(-0.005430, abs=1e-6)
    assert report.loss == pytest.approx(-1.668831, abs=1e-5)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("tanh", {1: 0.0, 2: 0.0996680, 11: 0.7615942, 101: 1.0}),
        ("sin", {1: 0.5, 11: 0.9207355, 48: 0.0000383}),
        ("square", {1: 1.0, 5: 1.0, 6: 0.0, 10: 0.0, 11: 1.0}),
        ("frac", {1: 1.0, 2: 0.5, 10: 0.1}),
        ("fixed", {1: 1.0, 77: 1.0}),
    ],
)
def test_schedules(schedule, expected):
    method = FedRAP(v1=2.0, v2=3.0, schedule=schedule)
    for round_, s in expected.items():
        assert method.weights(round_) == pytest.approx((2 * s, 3 * s), abs=1e-4)


def test_a_table_that_is_not_there_has_no_regulariser_and_is_not_sent():
    assert FedRAP(parts="common", schedule="fixed", v1=1, v2=1).weights(3) == (0, 1)
    assert FedRAP(parts="own", schedule="fixed", v1=1, v2=1).weights(3) == (0, 0)
    assert FedRAP(parts="own").sends() == {}
    assert "own" not in FedRAP(parts="common").private()


@pytest.mark.parametrize(
    "settings",
    [{"schedule": "cos"}, {"norm": "l3"}, {"parts": "none"}, {"v1": -1}, {"step_decay": 0}, {"round_decay": 1.1}],
)
def test_senseless_settings_are_refused(settings):
    with pytest.raises(UserError):
        FedRAP(**settings)


def test_learning_improves_on_the_start_on_tastes():
    split = leave_one_out(generate(users=200, items=300, interactions=8000))
    fast = {"lr": 0.1, "epochs": 1, "batch": 256, "item_lr": 1000.0, "own_lr_factor": 0.1, "round_decay": 1.0}
    worker = trainer(FedRAP(**fast), split, protocol("clean"), 0)
    idle = trainer(FedRAP(lr=0, item_lr=0, epochs=1), split, protocol("clean"), 0).play(1)
    played = [worker.play(round_) for round_ in range(1, 16)]
    assert played[-1].valid["sampled"]["hr@10"] > 1.5 * idle.valid["sampled"]["hr@10"]
