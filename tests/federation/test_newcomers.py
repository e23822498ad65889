import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from federec.cohort.draw import Devices
from federec.errors import UserError
from federec.federation.newcomers import STEPS, Newcomers, devices_of
from federec.federation.round import play
from federec.federation.scoring import score_global
from federec.federation.state import State

ITEMS, SEED = 40, 3


@pytest.fixture
def newcomers(small, random_split):
    def make(name, rounds=3, **settings):
        method = small(name, **settings)
        devices = Devices.of(random_split(items=ITEMS), False)
        state = State.start(method, ITEMS, len(devices), SEED)
        for round_ in range(1, rounds + 1):
            play(method, state, devices, torch.arange(len(devices)), SEED, round_)
        return Newcomers(method, state, ITEMS, SEED, rounds)

    return make


def history(*codes):
    return np.array(codes, np.int64)


def test_a_fit_is_gradient_descent_on_the_private_layer(newcomers):
    """The same by autograd: mean cross-entropy of the items, and of all items as negatives, in the method's ratio."""
    new = newcomers("pfedrec")
    rows, items = new.state.shared["items"], torch.tensor([4, 9])
    start = State.start(new.method, ITEMS, 1, SEED).private
    weight, bias = (start[f"score.0.{name}"][0].clone().requires_grad_() for name in ("weight", "bias"))
    share = new.method.negatives / (1 + new.method.negatives)
    for _ in range(STEPS):
        scores = (rows @ weight)[:, 0] + bias
        loss = (1 - share) * binary_cross_entropy_with_logits(scores[items], torch.ones(2))
        loss = loss + share * binary_cross_entropy_with_logits(scores, torch.zeros(ITEMS))
        with torch.no_grad():
            for value, slope in zip((weight, bias), torch.autograd.grad(loss, (weight, bias)), strict=True):
                value -= new.method.lr * slope
    expected = ((rows @ weight)[:, 0] + bias).detach().numpy()
    assert new.scores([history(4, 9)])[0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", ["pfedrec", "fedmf", "fedrap", "fedncf", "fedals", "fedease", "fednext", "everything"])
def test_a_newcomer_learns_from_its_items_alone(newcomers, name):
    new = newcomers(name)
    items = history(1, 5, 7)
    alone, beside = new.scores([items])[0], new.scores([history(30), items, history()])
    assert np.isfinite(beside).all() and beside.shape == (3, ITEMS)
    assert beside[1] == pytest.approx(alone, abs=1e-4)
    assert not np.allclose(beside[0], beside[1]) and beside[2] == pytest.approx(new.unknown)
    assert len(np.unique(new.unknown)) > 5, "somebody without items finds all items equal"


def test_who_reads_the_history_scores_as_a_device_with_it(newcomers):
    new = newcomers("fedease")
    devices, users = devices_of([history(2, 8)], ITEMS), torch.zeros(1, dtype=torch.int64)
    expected = score_global(new.method, new.state, users, torch.arange(ITEMS)[None], devices)[0]
    assert new.scores([history(2, 8)])[0] == pytest.approx(expected.numpy())


def test_fedease_without_items_ranks_by_popularity(newcomers, random_split):
    counts = np.bincount(random_split(items=ITEMS).train, minlength=ITEMS)
    assert np.array_equal(newcomers("fedease").unknown, counts)


@pytest.mark.parametrize("name", ["pfedrec", "fedrap", "fedease", "fednext", "fedsasrec"])
def test_new_items_change_nothing_for_the_others(newcomers, name):
    new = newcomers(name, rounds=1)
    grown = new.with_items(3)
    before, after = new.scores([history(1, 2)])[0], grown.scores([history(1, 2)])[0]
    assert after.shape == (ITEMS + 3,) and np.isfinite(after).all()
    assert np.ptp(after[ITEMS:]) < 1e-5, "nobody has any of them: they are all alike"
    # Negatives are drawn from more items, and scores are standardised over more: the order stays nearly the same.
    assert np.corrcoef(before, after[:ITEMS])[0, 1] > 0.95


@pytest.mark.parametrize(("name", "why"), [("metamf", "each user on the server"), ("local-only", "shares nothing")])
def test_methods_without_anything_for_strangers_say_so(newcomers, name, why):
    with pytest.raises(UserError, match=why):
        newcomers(name, rounds=0)


def test_devices_of_histories_draw_what_they_do_not_have():
    devices = devices_of([history(3, 0), history(), history(2)], 5)
    assert devices.ptr.tolist() == [0, 2, 2, 3] and devices.train.tolist() == [3, 0, 2]
    assert devices.gaps.tolist() == [0, 2, 2]
