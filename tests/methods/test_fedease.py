import math

import numpy as np
import pytest
import torch

from federec.cohort.draw import Devices
from federec.data.split import leave_one_out
from federec.data.tastes import generate
from federec.errors import UserError
from federec.evaluation.protocols import protocol
from federec.federation.round import play
from federec.federation.scoring import score_global
from federec.federation.state import State
from federec.methods.ease import EASE
from federec.methods.fedease import FedEASE
from federec.plugins.registry import build
from federec.runtimes.simulation import trainer


def start(method, split):
    devices = Devices.of(split, False)
    return devices, State.start(method, split.data.n_items, len(devices), 0)


def scores(method, split, rounds=1):
    """Scores of everything for everybody after some rounds, and the reports."""
    devices, state = start(method, split)
    everyone = torch.arange(len(devices))
    reports = [play(method, state, devices, everyone, 0, round_) for round_ in range(1, rounds + 1)]
    items = torch.arange(split.data.n_items).expand(len(devices), -1)
    return score_global(method, state, everyone, items, devices), state, reports


def test_two_devices_by_hand(split_of):
    """Histories {0, 1} and {0}: G = [[2, 1], [1, 1]], l2 = 1. Item 1 from item 0 alone: 1 / (2 + 1); item 0 from item
    1 alone: 1 / (1 + 1)."""
    split = split_of([[0, 1, 2, 3], [0, 2, 3]], 4)
    scored, state, _ = scores(FedEASE(l2=(1.0,)), split)
    assert state.server["gram"][:2, :2].tolist() == [[2, 1], [1, 1]]
    assert state.server["gram"].sum() == 5
    expected = [[1 / 2, 1 / 3, 0, 0], [0, 1 / 3, 0, 0]]
    np.testing.assert_allclose(scored, expected, atol=1e-7)


def test_every_score_is_that_of_ease(random_split):
    split, l2 = random_split(users=60, items=50, most=30), (1.0, 20.0, 300.0)
    for round_ in (1, 2, 3):
        central = EASE(l2=l2)
        expected = central.scores(central.refine({}, split, round_), split, torch.arange(60))
        got, _, _ = scores(FedEASE(l2=l2), split, round_)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_recency_weighs_a_devices_own_items_by_age(split_of):
    """Three items, the newest last, half-life 2, floor 0.1: weights 0.5 + 0.1, 0.707107 + 0.1, 1 + 0.1. The short
    history beside it has padding, which must weigh nothing however far it reaches."""
    long = [*range(10, 300), 7, 8]
    split = split_of([[2, 0, 1, 7, 8], [0, 1, 2, 3, 7, 8], long], 300)
    scored, state, _ = scores(FedEASE(l2=(1.0,), recency=(2.0,), floor=0.1), split)
    weights = state.shared["weights"]
    expected = 0.6 * weights[2] + (math.sqrt(0.5) + 0.1) * weights[0] + 1.1 * weights[1]
    torch.testing.assert_close(scored[0], expected)
    assert scored.isfinite().all()


def test_a_window_lets_the_co_occurrence_of_distant_items_fall(split_of):
    """Order 2, 0, 1 and window 1: neighbours exp(-1), the ends exp(-2)."""
    split = split_of([[2, 0, 1, 3, 4]], 5)
    _, state, _ = scores(FedEASE(l2=(1.0,), window=(1.0,)), split)
    a, b = math.exp(-1), math.exp(-2)
    expected = torch.zeros(5, 5)
    expected[:3, :3] = torch.tensor([[1, a, a], [a, 1, b], [a, b, 1]])
    torch.testing.assert_close(state.server["gram"], expected)


def test_a_round_is_a_trial_and_only_a_new_window_asks_the_devices(split_of):
    """Six items, histories of 3 and 1: a half matrix is 21 values; own pairs are 6 and 1. A row is 24 bytes."""
    split = split_of([[0, 1, 2, 4, 5], [3, 4, 5]], 6)
    settings = {"l2": (1.0, 5.0), "recency": (0.0, 3.0), "window": (0.0, 2.0)}
    method = FedEASE(**settings)
    assert method.most_rounds == 8
    assert [method.trial(r) for r in (1, 2, 3, 5)] == [(0, 0, 1, 0), (0, 0, 1, 3), (0, 0, 5, 0), (2, 0, 1, 0)]
    _, state, reports = scores(method, split, 8)
    assert [report.up_bytes for report in reports] == [84, 0, 0, 0, 84, 0, 0, 0]
    assert [report.down_bytes for report in reports] == [48, 0] * 4
    assert state.shared["recency"].tolist() == [3.0]
    _, _, reports = scores(FedEASE(**settings, upload="sparse", top=2), split, 3)
    assert [report.up_bytes for report in reports] == [8 * (6 + 1) / 2, 0, 0]
    assert [report.down_bytes for report in reports] == [8 * 2 * (3 + 1) / 2, 0, 32]


def test_the_last_trial_is_the_one_alone(random_split):
    split = random_split(users=30, items=30)
    many, _, _ = scores(FedEASE(l2=(1.0, 9.0), recency=(0.0, 4.0), window=(0.0, 2.0)), split, 8)
    alone, _, _ = scores(FedEASE(l2=(9.0,), recency=(4.0,), window=(2.0,)), split)
    torch.testing.assert_close(many, alone)


def test_top_keeps_the_largest_weights_of_each_row(random_split):
    split = random_split(users=30, items=20)
    _, full, _ = scores(FedEASE(l2=(1.0,)), split)
    _, few, _ = scores(FedEASE(l2=(1.0,), top=3), split)
    for row, kept in zip(full.shared["weights"], few.shared["weights"], strict=True):
        best = sorted(range(20), key=lambda k, row=row: -abs(row[k]))[:3]
        assert kept.tolist() == [float(row[k]) if k in best else 0.0 for k in range(20)]


@pytest.mark.parametrize(
    "settings",
    [
        *({"l2": ()}, {"l2": (0.0,)}, {"recency": (-1.0,)}, {"recency": ()}, {"window": (-1.0,)}, {"window": ()}),
        *({"floor": -0.1}, {"top": -1}, {"upload": "zip"}, {"negatives": 4}),
    ],
)
def test_senseless_settings_are_refused(settings):
    with pytest.raises(UserError):
        FedEASE(**settings)


def test_noise_is_removed_before_the_server_solves(random_split):
    """With so much noise the matrix is not positive definite, and plain EASE has no solution for a small penalty."""
    method = build("fedease", ["ldp"], {"laplace": 50.0, "l2": (1.0, 1e6)})
    worker = trainer(method, random_split(), protocol("clean"), 0)
    for round_ in (1, 2):
        worker.play(round_)
        gram = worker.state.server["gram"]
        assert float(torch.linalg.eigvalsh((gram + gram.T) / 2).min()) < -1
        assert bool(worker.state.shared["weights"].isfinite().all())


def test_only_popular_items_have_weights(random_split):
    split = random_split(users=40, items=30)
    worker = trainer(FedEASE(l2=(9.0,), popular=(5, 0)), split, protocol("clean"), 0)
    worker.play(1)
    some, gram = worker.state.shared["weights"], worker.state.server["gram"]
    rows = some.abs().sum(1).nonzero().flatten()
    assert set(rows.tolist()) <= set(gram.diagonal().topk(5).indices.tolist()) and 2 <= len(rows) <= 5
    alone = FedEASE().regression(gram[rows[:, None], rows], 0.0, 9.0, {})
    torch.testing.assert_close(some[rows[:, None], rows], alone)
    worker.play(2)
    assert (worker.state.shared["weights"].abs().sum(1) > 0).sum() > 5


def test_it_learns_tastes_in_one_round():
    split = leave_one_out(generate(users=300, items=500, interactions=12_000))
    popular = trainer(build("popularity"), split, protocol("clean"), 0).play(1).test["sampled"]
    worker = trainer(FedEASE(l2=(400.0,), recency=(0.0, 20.0)), split, protocol("clean"), 0)
    plain, recent = (worker.play(round_).test["sampled"] for round_ in (1, 2))
    assert plain["hr@10"] > popular["hr@10"] + 0.05
    assert recent["hr@10"] > popular["hr@10"] + 0.05
