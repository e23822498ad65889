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
from federec.methods.fedals import FedALS, fold, unfold
from federec.methods.ials import IALS
from federec.plugins.registry import build
from federec.runtimes.simulation import trainer


def test_a_sweep_by_hand(split_of):
    """One device with item 0, rows 1, 2, 0, alpha = l2 = 1.

    V'V = 5       p = 2 * 1 / (5 + 1 + 1) = 2/7       v_0 = 2 * 2/7 / (4/49 + 4/49 + 1) = 28/57, the others 0
    """
    method = FedALS(dim=1, alpha=1.0, l2=1.0)
    state = State({"items": torch.tensor([[1.0], [2.0], [0.0]])}, {"user": torch.zeros(1, 1)})
    play(method, state, Devices.of(split_of([[0, 1, 2]], 3), False), torch.tensor([0]), 0, 1)
    assert state.private["user"].item() == pytest.approx(2 / 7)
    assert state.shared["items"].squeeze(1).tolist() == pytest.approx([28 / 57, 0, 0])


def test_every_score_is_that_of_ials(random_split):
    split = random_split(users=50, items=60, most=40)
    settings = {"dim": 6, "alpha": 3.0, "l2": 2.0}
    central, method = IALS(**settings), FedALS(**settings)
    devices, everyone = Devices.of(split, False), torch.arange(50)
    model, state = central.start(split, 7), State.start(method, 60, 50, 7)
    assert torch.equal(model["items"], state.shared["items"])
    for round_ in range(1, 6):
        model = central.refine(model, split, round_)
        play(method, state, devices, everyone, 7, round_)
        got = score_global(method, state, everyone, torch.arange(60).expand(50, -1))
        torch.testing.assert_close(got, central.scores(model, split, everyone), rtol=0, atol=1e-4)


def test_defaults_are_those_of_ials():
    ours, central = FedALS(), IALS()
    assert (ours.dim, ours.alpha, ours.l2) == (central.dim, central.alpha, central.l2)
    assert FedALS.default_rounds == IALS.default_rounds


def test_bytes_dense_and_sparse(split_of):
    """Width 3: half a matrix is 6 values. Histories of 3 and 1 of 6 items."""
    devices = Devices.of(split_of([[0, 1, 2, 4, 5], [3, 4, 5]], 6), False)
    reports = {}
    for upload in ("dense", "sparse"):
        method = FedALS(dim=3, upload=upload)
        reports[upload] = play(method, State.start(method, 6, 2, 0), devices, torch.arange(2), 0, 1)
    assert reports["dense"].up_bytes == 4 * (6 + 6 * (6 + 3))
    assert reports["sparse"].up_bytes == 4 * 6 + 2 * (4 + 4 * (6 + 3))  # two items on average
    assert reports["dense"].down_bytes == reports["sparse"].down_bytes == 2 * (4 + 4 * 3) + 4 * 6


def test_half_a_symmetric_matrix_and_back():
    matrix = torch.randn(4, 5, 5)
    matrix = matrix + matrix.mT
    assert fold(matrix).shape == (4, 15)
    assert torch.equal(unfold(fold(matrix), 5), matrix)


@pytest.mark.parametrize("settings", [{"dim": 0}, {"alpha": 0}, {"l2": 0}, {"negatives": 1}, {"upload": "zip"}])
def test_senseless_settings_are_refused(settings):
    with pytest.raises(UserError):
        FedALS(**settings)


@pytest.mark.parametrize(("name", "rounds"), [("fedals", 3), ("fcf", 12)])
def test_it_learns_tastes(name, rounds):
    split = leave_one_out(generate(users=300, items=500, interactions=12_000))
    worker = trainer(build(name), split, protocol("clean"), 0)
    idle = worker.play(1).test["sampled"]  # user vectors fitted to random rows
    for round_ in range(2, rounds + 1):
        reached = worker.play(round_).test["sampled"]
    popular = trainer(build("popularity"), split, protocol("clean"), 0).play(1).test["sampled"]
    assert reached["hr@10"] > popular["hr@10"] + 0.05
    assert reached["hr@10"] >= idle["hr@10"]
