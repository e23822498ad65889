import numpy as np
import pytest
import torch

from federec.checks.engines import engines_agree
from federec.cohort.draw import Devices
from federec.evaluation.protocols import protocol
from federec.federation.fused_products import Sampled
from federec.mathematics.sampled import Whole
from federec.methods.metamf import MetaMF
from federec.plugins.registry import build
from federec.runtimes.simulation import trainer

SMALL = {"dim": 8, "memory": 6, "hidden": 10, "rank": 3, "batch": 16, "server_lr": 0.02, "user_lr": 0.05}


@pytest.fixture(scope="module")
def devices(split_of):
    """Devices of many lengths, one of which has every item and draws no negatives."""
    random = np.random.default_rng(4)
    return Devices.of(split_of([random.permutation(60)[:n] for n in (60, 3, 4, 9, 30, 31, 12, 12, 50)], 60), True)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("rank", "pairs"), [(1, 5), (3, 90), (4, 0), (8, 230)])
def test_products_of_pairs_are_those_of_all_picked(rank, pairs, threads):
    random = torch.Generator().manual_seed(1)
    hidden, weight, bias = (torch.randn(size, generator=random) for size in ((7, 20), (20, 50, rank), (50, rank)))
    chosen = torch.randperm(7 * 50, generator=random)[:pairs]
    owner, ids, gradient = chosen // 50, chosen % 50, torch.randn(pairs, rank, generator=random)
    torch.set_num_threads(threads)
    try:
        rows = Sampled().rows(hidden, weight, bias, owner, ids)
        pulled = Sampled().pull(hidden, weight, owner, ids, gradient)
    finally:
        torch.set_num_threads(1)
    torch.testing.assert_close(rows, Whole().rows(hidden, weight, bias, owner, ids), rtol=1e-5, atol=1e-5)
    for found, expected in zip(pulled, Whole().pull(hidden, weight, owner, ids, gradient), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=3e-5)  # sums of up to 230 products


@pytest.mark.parametrize(
    ("users", "rounds", "tolerance"), [(None, 1, 1e-4), ([1, 4, 0, 7, 8], 3, 1e-3)], ids=["all", "some"]
)
@pytest.mark.parametrize("plugins", [(), ("sam",), ("recency", "ldp")], ids=str)
def test_the_kernels_play_the_same_round(devices, plugins, users, rounds, tolerance):
    users = None if users is None else torch.tensor(users)
    engines_agree(build("metamf", plugins, SMALL), devices, users, range(1, rounds + 1), tolerance)


def test_updates_may_be_taken_in_a_few_at_a_time(devices, monkeypatch):
    monkeypatch.setattr("federec.federation.fused_products._ROWS", 20)
    engines_agree(MetaMF(**SMALL), devices)


def test_trainers_agree(random_split):
    split, rules = random_split(users=60, items=150, least=6, most=40, seed=2), protocol("clean")
    slow, quick = (trainer(MetaMF(**SMALL), split, rules, 3, 0.7, engine=engine) for engine in ("torch", "fused"))
    for round_ in (1, 2):
        expected, played = slow.play(round_), quick.play(round_)
    for metric, value in expected.test["sampled"].items():
        assert played.test["sampled"][metric] == pytest.approx(value, abs=0.02)  # one user more or less
    review, other = quick.review(played.model, 2), slow.review(expected.model, 2)
    assert review.test["full"]["hr@20"] == pytest.approx(other.test["full"]["hr@20"], abs=0.02)
