import math

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from federec.cohort.draw import Devices, draw
from federec.data.split import leave_one_out
from federec.data.tastes import generate
from federec.errors import UserError
from federec.evaluation.protocols import protocol
from federec.federation.device import cohorts
from federec.federation.round import play
from federec.federation.scoring import score_own
from federec.federation.state import State
from federec.methods.fedmf import FedMF
from federec.methods.pfedrec import PFedRec
from federec.plugins.base import plug
from federec.plugins.plgc import PLGC, _once, _speed, redundancy
from federec.plugins.registry import build
from federec.runtimes.simulation import trainer

OFF = {"mix": "fixed", "mix_weight": 1.0, "beta": 0.0}


def two_rounds(method, split):
    devices = Devices.of(split, False)
    state = State.start(method, split.data.n_items, len(devices), seed=1)
    reports = [play(method, state, devices, torch.arange(len(devices)), 1, round_) for round_ in (1, 2)]
    return state, reports


@pytest.mark.parametrize(
    ("name", "settings"),
    [("fedmf", {}), ("fedncf", {}), ("pfedrec", {}), ("pfedrec", {"hidden": (5, 3)}), ("fedrap", {})],
)
def test_switched_off_it_changes_no_bit(random_split, small, name, settings):
    split = random_split()
    plain, reports = two_rounds(small(name, **settings), split)
    off, reports_off = two_rounds(small(name, ["plgc"], **settings, **OFF), split)
    on, _ = two_rounds(small(name, ["plgc"], **settings), split)
    for key, value in plain.tensors().items():
        assert torch.equal(value, off.tensors()[key]), key
    assert reports == reports_off and [one.notes for one in reports] == [one.notes for one in reports_off]
    assert any(not torch.equal(value, on.shared[key]) for key, value in plain.shared.items())


def test_a_batch_equals_plain_torch(random_split):
    """Two steps of FedMF on one device: the second has rows of its own, and a mixing weight that is not 1/2."""
    method = plug(FedMF, PLGC)(dim=3, batch=24, lr=0.1, item_lr_factor=0.5, beta=0.3, gamma=0.7, smoothing=0.2)
    split = random_split(users=4, items=40, least=11, most=15)
    devices = Devices.of(split, False)
    start = State.start(method, 40, 4, seed=1)
    state = start.copy()
    report = play(method, state, devices, torch.tensor([2]), 1, 1)

    samples = draw(devices, torch.tensor([2]), 1, 1, 4)
    server, table = start.shared["items"], start.shared["items"].clone().requires_grad_()
    user, odds = start.private["user"][2].clone().requires_grad_(), torch.tensor(0.0)
    for batch in samples.order(0)[0].split(24):
        items, labels = samples.items[0, batch], samples.labels[0, batch]
        with torch.no_grad():
            a = odds.sigmoid()
            r = torch.sigmoid((a * table[items] + (1 - a) * server[items]) @ user) - labels
            speed = []
            for rows in (table[items], server[items]):
                kernel = rows @ rows.T + 1
                speed.append(r @ kernel @ r / (r @ r * kernel.trace()))
            odds = 0.2 * odds + 0.8 * (speed[0] / speed[1]).log()
        a, own = odds.sigmoid(), items.unique()
        loss = binary_cross_entropy_with_logits((a * table[items] + (1 - a) * server[items]) @ user, labels)
        z, g = ((x - x.mean(0)) / (x.var(0, correction=0) + 1e-6).sqrt() for x in (table[own], server[own]))
        x = z.T @ g / len(own)
        off = x - torch.diag(x.diagonal())
        loss = loss + 0.3 * (((1 - x.diagonal()) ** 2).sum() + 0.7 * (off**2).sum())
        gradients = torch.autograd.grad(loss, [user, table])
        user.data -= 0.1 * gradients[0]
        table.data -= 0.1 * 40 * 0.5 * gradients[1]
    assert abs(float(odds)) > 1e-3
    torch.testing.assert_close(state.private["user"][2], user.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state.private["plgc.odds"][2], odds, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(state.shared["items"], table.detach(), rtol=1e-4, atol=1e-5)
    assert report.notes["mixing weight"] == pytest.approx(float(odds.sigmoid()), abs=1e-5)


@pytest.mark.parametrize("name", ["fedmf", "fedncf", "pfedrec", "fedrap"])
def test_gradients_are_those_of_the_method_at_mixed_rows(random_split, small, name):
    """By autograd through the mix, beside the method's own gradient times a."""
    plain, method = small(name), small(name, ["plgc"], beta=0.3, gamma=0.7)
    state = State.start(method, 40, 12, seed=1)
    cohort = next(cohorts(method, state, Devices.of(random_split(), False), torch.arange(12), 0, 7))
    (table,) = method.tables()
    step = next(cohort.steps(8))
    names = [n for n in (*method.shared(), *method.private()) if n != "plgc.odds"]
    generator = torch.Generator().manual_seed(2)
    p = step.values() | {"plgc.odds": torch.randn(step.active, generator=generator)}
    p |= {table + "@server": torch.randn(p[table].shape, generator=generator)}
    loss, found = method.derive(p, step, names)

    leaf = {n: p[n].clone().requires_grad_() for n in names}
    own = p["plgc.odds"].sigmoid()[:, None, None]
    mixed = p | leaf | {table: own * leaf[table] + (1 - own) * p[table + "@server"]}
    expected = plain.loss(mixed, step)
    slopes = dict(zip(names, torch.autograd.grad(expected.sum(), leaf.values()), strict=True))
    value, slope = redundancy(p[table], p[table + "@server"], _once(step), 0.7)
    torch.testing.assert_close(loss, expected.detach() + 0.3 * value)
    for n in names:
        torch.testing.assert_close(found[n], slopes[n] + 0.3 * slope if n == table else slopes[n])


def test_speed_worked_by_hand():
    """Features (1, 0), (2, 0); residuals 1/2, -1: r'Kr = (1/2 - 2)^2 + (-1/2)^2 = 5/2, tr K = 2 + 5 = 7."""
    features, residual = torch.tensor([[[1.0, 0.0], [2.0, 0.0]]]), torch.tensor([[0.5, -1.0]])
    assert _speed(features, residual, torch.ones(1, 2)).item() == pytest.approx(2.5 / 7)


def test_with_no_weight_on_its_own_rows_a_device_has_nothing_to_send(random_split):
    method = plug(FedMF, PLGC)(dim=4, mix="fixed", mix_weight=0.0, beta=0.0)
    state, reports = two_rounds(method, random_split())
    assert torch.equal(state.shared["items"], State.start(method, 40, 12, seed=1).shared["items"])
    assert reports[0].up_bytes == 0 < reports[0].down_bytes


def test_own_rows_are_ranked_with_as_they_were_trained(random_split):
    method = plug(PFedRec, PLGC)(dim=4, item_lr_factor=0.2, mix="fixed", mix_weight=0.25, beta=0.0)
    split, plain = random_split(), PFedRec(dim=4)
    devices, items = Devices.of(split, False), torch.arange(40).expand(12, -1)
    state = State.start(method, 40, 12, seed=1)
    seen = []

    def observe(cohort):
        rows = state.shared["items"].repeat(len(cohort), 1, 1)
        rows[cohort.rows.owner, cohort.rows.ids] *= 0.75
        rows[cohort.rows.owner, cohort.rows.ids] += 0.25 * cohort.tables["items"]
        found = score_own(method, cohort, state, items[: len(cohort)])
        torch.testing.assert_close(found, plain.score(cohort.params | {"items": rows}))
        seen.append(len(cohort))

    play(method, state, devices, torch.arange(12), 1, 1, observe)
    assert sum(seen) == 12


def test_the_kernel_rule_looks_at_the_last_hidden_layer():
    method = PFedRec(dim=3, hidden=(5, 2))
    p = {name: torch.randn(1, *param.shape) for name, param in method.private().items()} | {
        "items": torch.randn(1, 7, 3)
    }
    features = method.features(p)
    assert features.shape == (1, 7, 2) and (features >= 0).all()
    last = features @ p["score.2.weight"] + p["score.2.bias"]
    torch.testing.assert_close(last.squeeze(2), method.score(p))


def test_rounds_report_weights_and_spectra(random_split, small):
    _, reports = two_rounds(small("pfedrec", ["plgc"]), random_split())
    notes = reports[1].notes
    assert 0 < notes["mixing weight"] < 1
    assert 1 <= notes["items: effective rank"] <= 4 and len(notes["items: spectrum"]) == 4
    _, plain = two_rounds(small("pfedrec"), random_split())
    assert set(plain[1].notes) == set(notes) - {"mixing weight"}
    assert all(math.isfinite(value) for value in notes["items: spectrum"])


@pytest.mark.parametrize(
    "settings", [{"mix": "mean"}, {"mix_weight": 1.1}, {"mix_weight": -0.1}, {"smoothing": 1}, {"beta": -1}]
)
def test_senseless_settings_are_refused(settings):
    with pytest.raises(UserError):
        plug(FedMF, PLGC)(**settings)


def test_a_method_without_shared_item_rows_is_refused():
    with pytest.raises(UserError, match="plug-in 'plgc' does not fit 'local-only': its devices share no item rows"):
        build("local-only", ["plgc"])


def test_learning_improves_on_the_start_on_tastes():
    split = leave_one_out(generate(users=200, items=300, interactions=8000))
    worker = trainer(plug(FedMF, PLGC)(), split, protocol("clean"), 0, engine="fused")
    idle = trainer(FedMF(lr=0), split, protocol("clean"), 0).play(1)
    played = [worker.play(round_) for round_ in range(1, 31)]
    assert played[-1].valid["sampled"]["hr@10"] > 1.5 * idle.valid["sampled"]["hr@10"]
