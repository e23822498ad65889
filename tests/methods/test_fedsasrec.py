from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.methods.test_sasrec import SMALL, learned_from_order, planted

from federec.cohort.draw import Devices
from federec.errors import UserError
from federec.evaluation.selection import schedule
from federec.federation.channel import Link
from federec.federation.device import cohorts
from federec.federation.round import play
from federec.federation.scoring import score_global
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.methods.fedsasrec import FedSASRec
from federec.methods.sasrec import SASRec
from federec.plugins.registry import build
from federec.stages.clip import Clip
from federec.stages.gaussian import Gaussian
from federec.stages.quantise import Quantise
from federec.stages.secure_sum import SecureSum


class EachAlone(FedSASRec):
    """Always sends single messages."""

    def adds_up(self, round_):
        return False


def played(method, split, rounds=3, users=None, link=None, memory=None):
    devices = Devices.of(split, False)
    state = State.start(method, split.data.n_items, len(devices), 0)
    users = torch.arange(len(devices)) if users is None else users
    reports = [
        play(method, state, devices, users, 0, round_, link=link, memory=memory) for round_ in range(1, rounds + 1)
    ]
    return state, reports, devices


def same(actual, expected, tolerance=1e-5):
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=1e-3, atol=tolerance)


def tied(split):
    """The same with items of equal times, four at a time."""
    return replace(split, moments=(np.arange(len(split.train)) // 4).astype(np.int32))


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_round_is_a_centralised_step(random_split, dropout):
    """The random numbers of a user in a round are the same, so it holds with dropout and ties, too."""
    split, settings = tied(random_split(users=20, items=40)), SMALL | {"dropout": dropout}
    state, _, devices = played(FedSASRec(**settings), split)
    central = SASRec(**settings, batch=20)
    model = central.start(split, 0)
    for round_ in (1, 2, 3):
        model = central.learn(model, split, devices, 0, round_)
    same(state.shared, {name: model[name] for name in state.shared})
    same(state.server, {name: model[name] for name in state.server})
    items = torch.arange(40).expand(20, -1)
    scores = score_global(FedSASRec(**settings), state, torch.arange(20), items, devices)
    torch.testing.assert_close(scores, central.scores(model, split, torch.arange(20)), rtol=1e-3, atol=1e-4)


def test_equal_times_are_ordered_anew_in_every_round(random_split):
    """Only with `reorder`, and only where there are ties."""
    split = random_split(users=20, items=40)
    loss = {
        (reorder, ties): [report.loss for report in played(FedSASRec(**SMALL, lr=0.0, reorder=reorder), of)[1]]
        for reorder in (False, True)
        for ties, of in ((False, split), (True, tied(split)))
    }
    assert len({*loss[True, True]}) == 3
    assert loss[False, True] == loss[False, False] == loss[True, False] and len({*loss[False, True]}) == 1


@pytest.mark.parametrize("memory", [None, 1.0])
def test_the_sum_is_that_of_single_messages(random_split, memory):
    split, settings = random_split(users=20, items=40), SMALL | {"dropout": 0.3}
    together, reports, _ = played(FedSASRec(**settings), split, memory=memory)
    apart, others, _ = played(EachAlone(**settings), split)
    same(together.shared, apart.shared)
    for one, other in zip(reports, others, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-4)
        assert (one.up_bytes, one.down_bytes) == (other.up_bytes, other.down_bytes)


def test_single_messages_are_made_only_where_somebody_looks_at_them(random_split, monkeypatch):
    split, asked = random_split(), []
    single = FedSASRec.message
    monkeypatch.setattr(FedSASRec, "message", lambda self, *given: asked.append(1) or single(self, *given))
    method = FedSASRec(**SMALL)
    for stages, aggregator, looks in (
        ((), None, False),
        ((Clip(),), None, True),
        ((), "touched-mean", True),
    ):
        asked.clear()
        played(method, split, 1, link=Link.of(method, stages, aggregator))
        assert bool(asked) == looks
    monkeypatch.setattr(FedSASRec, "receive", lambda self, *given: None)
    asked.clear()
    assert method.opens_updates
    played(method, split, 1)
    assert asked


def test_no_other_method_knows_a_sum(small):
    assert DeviceMethod.summed is type(small("fedmf")).summed


def test_8_bits_change_little(random_split):
    split, method = random_split(users=40, items=30), FedSASRec(**SMALL)
    exact, reports, _ = played(method, split, 1)
    rounded, others, _ = played(method, split, 1, link=Link.of(method, (Quantise(bits=8),)))
    for name in ("items/m", "places/m", "0.hidden.in.weight/m"):
        difference = (rounded.server[name] - exact.server[name]).norm() / exact.server[name].norm()
        assert 0 < difference < 0.1, name
    assert 4 * others[0].up_bytes == reports[0].up_bytes


@pytest.mark.parametrize(
    "stages", [(Clip(norm=0.1),), (Clip(norm=0.1), Gaussian(scale=1e-4)), (SecureSum(),), (Quantise(), SecureSum())]
)
def test_stages_run(random_split, stages):
    split, method = random_split(), FedSASRec(**SMALL)
    before = State.start(method, split.data.n_items, 12, 0).shared
    state, _, _ = played(method, split, 2, link=Link.of(method, stages))
    for name, value in state.shared.items():
        assert value.isfinite().all()
        assert not torch.equal(value, before[name]), name


def test_several_local_steps_send_the_mean_gradient_on_the_way(split_of):
    """Two steps of one device are the gradient at the start and the one where it has gone by the first."""
    split = split_of([[5, 2, 7, 1, 3, 0, 6, 8, 9]], 10)
    devices = Devices.of(split, False)
    one, two = FedSASRec(**SMALL), FedSASRec(**SMALL, local_steps=2, local_lr=0.5)
    state = State.start(one, 10, 1, 0)
    cohort = next(cohorts(one, state, devices, torch.tensor([0]), 0, 1))
    first = one.message(cohort, state.shared)
    positions = first["positions"][0]
    moved = {name: value - 0.5 * first[name][0] / positions for name, value in state.shared.items()}
    second, sent = one.message(cohort, moved), two.message(cohort, state.shared)
    assert one.adds_up(1) and not two.adds_up(1)
    for name in state.shared:
        torch.testing.assert_close(sent[name], (first[name] + second[name]) / 2, rtol=1e-3, atol=1e-5)
    assert sent["positions"].tolist() == [[6 / SMALL["window"]]]


def test_bytes_are_those_of_the_whole_model(random_split):
    split, method = random_split(items=40), FedSASRec(**SMALL)
    state, (report,), _ = played(method, split, 1)
    values = sum(value.numel() for value in state.shared.values())
    assert (report.up_bytes, report.down_bytes) == (4 * values + 4, 4 * values)


def test_devices_without_a_next_item_change_nothing(split_of):
    state, (report,), _ = played(FedSASRec(**SMALL, decay=0.0), split_of([[1], [2, 3, 4]], 5), 1)
    start = State.start(FedSASRec(**SMALL), 5, 2, 0)
    assert report.loss == 0
    assert all(torch.equal(value, start.shared[name]) for name, value in state.shared.items())


def test_it_learns_what_follows_what(split_of):
    method = FedSASRec(dim=16, layers=1, window=20, dropout=0.1, lr=0.02, schedule=60)
    model, popular = learned_from_order(method, planted(split_of), 60, participation=0.34)
    assert model > 0.6 > 2 * popular


@pytest.mark.parametrize("plugin", ["dualper", "plgc", "sam", "recency"])
def test_plugins_that_change_steps_on_samples_are_refused(plugin):
    with pytest.raises(UserError, match="order of items"):
        build("fedsasrec", [plugin])


def test_no_negatives_are_drawn():
    with pytest.raises(UserError):
        FedSASRec(negatives=4)


def test_everybody_is_ranked_more_often_than_samples_alone_would_allow():
    """A device's gradient takes as long as scoring all items at many places, so a ranking of all users costs three
    rounds of a tenth of them, not a hundred."""
    lengths, users, items = torch.full((943,), 104), 943, 1682
    assert schedule(0.1 * FedSASRec().effort(lengths, items), users, items, rounds=1200) == (users, 21)
    assert schedule(0.1 * DeviceMethod.effort(FedSASRec(), lengths, items), users, items, rounds=1200).every > 90
