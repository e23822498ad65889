import numpy as np
import pytest
import torch

from federec.checks.engines import engines_agree
from federec.cohort.draw import Devices
from federec.evaluation.protocols import protocol
from federec.federation.engine import fused_round, fused_scores
from federec.federation.fused_neural import Reach
from federec.federation.round import play
from federec.federation.scoring import score_global
from federec.federation.state import State
from federec.kernels import network, neural
from federec.kernels.network import Shape, make_net
from federec.runtimes.recommender import Recommender
from federec.runtimes.simulation import trainer

NET = {"hidden": (7, 5, 3)}  # three layers always: kernels are compiled anew for every depth
UPHILL = {"rho_shared": 0.3, "rho_private": 0.2}
FIXED = {"mix": "fixed", "mix_weight": 0.3, "beta": 0.1}
CASES = {
    "fedncf": ("fedncf", (), {**NET, "user_lr": 2.0}),
    "fedncf, one batch": ("fedncf", (), {**NET, "user_lr": 2.0, "batch": 2048}),
    "fedncf, no negatives": ("fedncf", (), {**NET, "user_lr": 2.0, "negatives": 0}),
    "fedncf+sam": ("fedncf", ("sam",), {**NET, **UPHILL, "user_lr": 2.0}),
    "fedncf+sam, private": ("fedncf", ("sam",), {**NET, "user_lr": 2.0, "rho_shared": 0.0, "rho_private": 0.2}),
    "fedrecgel": ("fedrecgel", (), {"mlp_dim": 6, "epochs": 1}),
    "fedrecgel, two passes": ("fedrecgel", (), {**NET, "mlp_dim": 6, "epochs": 2, "rho_shared": 0.3}),
    "fedrecgel, one layer": ("fedrecgel", (), {"hidden": (7,), "mlp_dim": 6}),
    "fedrecgel, flat": ("fedrecgel", (), {**NET, "mlp_dim": 6, "rho_shared": 0.0, "rho_private": 0.0}),
    "fedncf+recency+ldp": ("fedncf", ("recency", "ldp"), {**NET, "user_lr": 2.0}),
    "fedncf+dualper": ("fedncf", ("dualper",), {**NET, "user_lr": 2.0}),
    "fedncf+sam+dualper": (
        "fedncf",
        ("sam", "dualper"),
        {**NET, **UPHILL, "user_lr": 2.0},
    ),
    "fedncf+dualper+ldp+recency": ("fedncf", ("dualper", "ldp", "recency"), {**NET, "user_lr": 2.0}),
    "fedrecgel+dualper": ("fedrecgel", ("dualper",), {**NET, "mlp_dim": 6, "epochs": 2, "rho_shared": 0.3}),
    "fedncf+plgc": ("fedncf", ("plgc",), {**NET, "user_lr": 2.0}),
    "fedncf+plgc, fixed": (
        "fedncf",
        ("plgc",),
        {**NET, **FIXED, "user_lr": 2.0},
    ),
    "fedrecgel+ldp+recency": ("fedrecgel", ("ldp", "recency"), {**NET, "mlp_dim": 6, "epochs": 2}),
}
SLOW = {"fedrecgel, one layer"}  # another number of layers is another kernel to compile


@pytest.fixture(scope="module")
def devices(split_of):
    """Devices of many lengths, one of which has every item and draws no negatives."""
    random = np.random.default_rng(4)
    return Devices.of(split_of([random.permutation(60)[:n] for n in (60, 3, 4, 9, 30, 31, 12, 12, 50)], 60), True)


@pytest.fixture(autouse=True)
def _several_tiles(monkeypatch):
    monkeypatch.setattr(network, "_MOST", 11)


def fuse(method, state, devices, users, round_):
    playing = fused_round(method, state, devices, 7, round_)
    for part in users.split(4):
        playing.play(part, part.new_zeros(len(part), 0))
    return playing.finish()


def close(actual, expected, tolerance):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("users", "rounds", "tolerance"), [(range(9), 1, 1e-4), ((1, 4, 0, 7, 8), 3, 1e-3)], ids=["all", "some"]
)
@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow if case in SLOW else ()) for case in CASES])
def test_the_kernel_plays_the_same_round(small, devices, case, users, rounds, tolerance):
    name, plugins, settings = CASES[case]
    method, users = small(name, plugins, **settings), torch.tensor([*users])
    assert method.fused_form(devices.n_items) is not None
    engines_agree(method, devices, users, range(1, 1 + rounds), tolerance)
    played, start = (State.start(method, devices.n_items, len(devices), 1) for _ in range(2))
    fuse(method, played, devices, users, 1)
    for key, value in start.tensors().items():
        assert not torch.equal(played.tensors()[key], value)


@pytest.mark.parametrize("case", ["fedncf+sam", "fedrecgel, two passes"])
def test_two_threads_do_what_one_does(small, devices, case):
    name, plugins, settings = CASES[case]
    method, users = small(name, plugins, **settings), torch.arange(len(devices))
    alone, shared = (State.start(method, devices.n_items, len(devices), 1) for _ in range(2))
    ask, before = torch.arange(devices.n_items).expand(len(devices), -1), alone.copy()
    report = fuse(method, alone, devices, users, 1)
    torch.set_num_threads(2)
    try:
        other, scores = fuse(method, shared, devices, users, 1), fused_scores(method, before, devices, users, ask)
    finally:
        torch.set_num_threads(1)
    assert report.up_bytes == other.up_bytes
    for key, value in alone.private.items():
        assert torch.equal(shared.private[key], value)
    assert torch.equal(scores, fused_scores(method, before, devices, users, ask))
    for key, value in alone.shared.items():
        close(shared.shared[key], value, 1e-6)  # summed in another order


@pytest.mark.parametrize("most", [4, 9])
def test_patterns_are_added_up_when_there_is_no_room_for_more(small, devices, monkeypatch, most):
    name, plugins, settings = CASES["fedrecgel, two passes"]
    method, users = small(name, plugins, **settings), torch.arange(len(devices))
    stacked, fused = (State.start(method, devices.n_items, len(devices), 1) for _ in range(2))
    monkeypatch.setattr(network, "_MOST", 4)
    monkeypatch.setattr(neural, "_PATTERNS", most)
    play(method, stacked, devices, users, 7, 1)
    fuse(method, fused, devices, users, 1)
    for key, value in stacked.tensors().items():
        close(fused.tensors()[key], value, 1e-4)


def test_units_that_a_user_cannot_activate_are_left_out(small, devices):
    method, users = small("fedrecgel", hidden=(40, 5, 3), mlp_dim=6), torch.arange(len(devices))
    state = State.start(method, devices.n_items, len(devices), 1)
    state.shared["mlp.0.bias"][::2] -= 1000
    state.private["user_mlp"][2] = -100 * state.shared["mlp.0.weight"][:6].sum(1).sign()
    ask = torch.arange(devices.n_items).expand(len(users), -1)
    close(fused_scores(method, state, devices, users, ask), score_global(method, state, users, ask), 1e-5)
    known, share = torch.randn(7, 40), torch.zeros(3, 40)
    share[0, 5:], share[1], known[3, 4] = -1000, -1000, torch.nan
    net = make_net(Shape(0, 40, (40,)))
    net.user[:] = np.eye(40)
    reach = Reach(known, share, net)
    assert reach.widths.tolist() == [16, 16, 40]
    assert 4 in reach.order[:1]  # the one that is not a number may be active for all
    assert Reach(known[:0], share, net).widths.tolist() == [1, 1, 1]
    assert len(Reach(known, share[:0], net).widths) == 0


def test_sam_without_radii_changes_no_bit(small, devices):
    states = []
    for method in (small("fedncf", **NET), small("fedncf", ("sam",), **NET, rho_shared=0, rho_private=0)):
        states.append(State.start(method, devices.n_items, len(devices), 1))
        fuse(method, states[-1], devices, torch.arange(len(devices)), 1)
    plain, off = (state.tensors() for state in states)
    assert all(torch.equal(value, off[key]) for key, value in plain.items())


@pytest.mark.parametrize("plugin", ["dualper", "recency", "sam"])
def test_what_the_kernel_does_not_know_is_left_to_torch(small, plugin):
    assert small("fedncf", ("plgc", plugin)).fused_form(50) is None
    assert small("fedncf", (plugin, "plgc")).fused_form(50) is None
    assert small("fedncf", (plugin,)).fused_form(50) is not None


@pytest.mark.parametrize("case", ["fedncf", "fedrecgel", "fedrecgel+dualper"])
def test_trainers_agree_and_the_review_repeats_the_round(small, random_split, case):
    name, plugins, settings = CASES[case]
    split = random_split(users=60, items=150, least=6, most=40, seed=2)
    method, rules = small(name, plugins, **settings), protocol("clean")
    slow, quick = (trainer(method, split, rules, 3, 0.7, engine=engine) for engine in ("torch", "fused"))
    for round_ in (1, 2):
        expected, played = slow.play(round_), quick.play(round_)
    for metric, value in expected.test["sampled"].items():
        assert played.test["sampled"][metric] == pytest.approx(value, abs=0.02)  # one user more or less
    review, other = quick.review(played.model, 2), slow.review(expected.model, 2)
    assert review.valid["sampled"] == played.valid["sampled"] and review.test["sampled"] == played.test["sampled"]
    assert review.test["full"]["hr@20"] == pytest.approx(other.test["full"]["hr@20"], abs=0.02)
    asked = Recommender(split.data, quick, played.model, 2), Recommender(split.data, slow, expected.model, 2)
    close(*(torch.from_numpy(each.scores(np.array([5]), np.arange(150))) for each in asked), 1e-3)
