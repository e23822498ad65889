"""An audit finds what is there, and finds nothing where nothing is."""

import json

import numpy as np
import pytest
import torch

import federec as fr
from federec.auditing.audit import NAMES
from federec.auditing.canaries import Canaries
from federec.auditing.replay import Federation
from federec.errors import UserError

SETTINGS = {"dim": 8, "item_lr_factor": 0.2}


@pytest.fixture(scope="module")
def data(random_split):
    return random_split(users=60, items=200, least=10, most=30).data


@pytest.fixture(scope="module")
def clear(data):
    return fr.train(fr.PFedRec(**SETTINGS), data, rounds=3)


@pytest.fixture(scope="module")
def found(clear):
    return fr.audit(clear, users=30)


def of(audit, attack, sees=""):
    return [each.measured for each in audit.findings if each.attack == attack and sees in each.sees]


def test_in_the_clear_one_message_names_a_users_items(found):
    for measured in of(found, "direction", "one message"):
        assert measured.precision.low >= 0.95 and measured.recall.low >= 0.95
    assert found.leaks and found.best.measured.auc.mean > 0.99
    assert "learns what users have" in found.verdicts()[0]
    assert found.verdicts()[1] == "No epsilon is promised." and found.kept is None


def test_who_looks_at_nothing_knows_nothing(found):
    (guess,) = of(found, "popularity")
    assert 0.45 < guess.auc.mean < 0.55


def test_messages_of_several_rounds_tell_items_from_negatives(found):
    one, last, several = of(found, "rows")
    assert one.precision.mean < 0.4 and last.precision.mean < 0.4 and several.precision.mean > 0.8
    assert several.recall.mean == 1


def test_sums_do_not_tell_a_users_items_from_those_of_its_mates(data):
    found = fr.audit(fr.train(fr.PFedRec(**SETTINGS), data, rounds=3, channel=["secure-sum"]), users=60)
    attacks = [each.measured.auc.mean for each in found.findings]
    assert len(attacks) == 1 + 3 * 5 and all(0.45 <= auc <= 0.55 for auc in attacks)
    assert not found.leaks and "cannot tell" in found.verdicts()[0]


def test_sums_of_changing_groups_are_compared(data):
    run = fr.train(fr.PFedRec(**SETTINGS), data, rounds=10, participation=0.1, channel=["secure-sum"])
    found = fr.audit(run, users=60, attacks=["difference"])
    assert [each.attack for each in found.findings] == ["popularity", "difference"]
    assert of(found, "difference")[0].auc.mean > 0.5


def test_rounds_are_played_again_as_they_were(data):
    run = fr.train(fr.PFedRec(**SETTINGS), data, rounds=2, channel=["clip:norm=0.5", "secure-sum"], engine="torch")
    federation = Federation.of(run)
    state = federation.start()
    for round_ in (1, 2):
        federation.play(state, round_, lambda update, users: None)
    for name, value in run.point.state.shared.items():
        assert value.equal(state.shared[name])


def test_an_audit_changes_nothing_in_the_run(clear):
    before = {name: value.clone() for name, value in clear.point.best_state.tensors().items()}
    fr.audit(clear, users=5, attacks=["direction"])
    assert all(value.equal(before[name]) for name, value in clear.point.best_state.tensors().items())


def test_it_says_all_of_it_to_programs(found):
    said = json.loads(found.json())
    assert said["leaks"] and len(said["attacks"]) == len(found.findings) == found.frame().shape[0]
    assert said["promised"]["epsilon"] is None and said["empirical"] is None
    assert str(found).splitlines()[0] == said["verdicts"][0]


@pytest.mark.parametrize("method", ["ease", "popularity"])
def test_what_has_no_devices_is_refused(data, method):
    with pytest.raises(UserError, match="trained in one place"):
        fr.audit(fr.train(method, data, rounds=1))


def test_what_cannot_be_is_refused_in_one_line(clear):
    with pytest.raises(UserError, match="unknown attack 'direktion' - did you mean"):
        fr.audit(clear, attacks=["direktion"])
    with pytest.raises(UserError, match="at least one user"):
        fr.audit(clear, users=0)
    assert "direction" in NAMES


@pytest.mark.parametrize("method", ["fedncf", "fedrap", "fedease", "fcf", "fedsasrec", "fednext"])
@pytest.mark.thorough
def test_messages_of_every_kind_are_read(data, small, method):
    found = fr.audit(fr.train(small(method), data, rounds=2, participation=1.0), users=20)
    assert found.best.measured.auc.mean > 0.9


def test_rounds_without_messages_are_not_read(data):
    """FedEASE sends once: one message is all there is, and it holds the user's items and nothing else."""
    found = fr.audit(fr.train("fedease", data, rounds=3), users=20, attacks=["rows"])
    assert [each.sees for each in found.findings] == ["nothing", "one message, round 1"]
    assert of(found, "rows")[0].precision.mean == of(found, "rows")[0].recall.mean == 1


def noised(data, stages, **how):
    return fr.train(fr.FedMF(dim=16, item_lr_factor=0.2), data, rounds=3, channel=stages, **how)


@pytest.mark.thorough
def test_canaries_come_close_to_the_promised_epsilon_and_never_above(data):
    pytest.importorskip("dp_accounting")
    for stages in (["clip:norm=0.1", "central-noise"], ["clip:norm=0.1", "distributed-noise", "secure-sum"]):
        found = fr.audit(noised(data, stages, epsilon=8.0), users=20, attacks=["sum"])
        assert found.promised.epsilon == pytest.approx(8, rel=0.01) and found.kept
        assert found.empirical.fit.mean >= 8 / 3 and 1 < found.empirical.least <= 8
        assert "is promised and holds" in found.verdicts()[1]


def test_canaries_find_noise_that_is_missing(data, monkeypatch):
    """A promise that is not kept is found out."""
    pytest.importorskip("dp_accounting")
    from federec.stages.central_noise import CentralNoise

    run = noised(data, ["clip:norm=0.1", "central-noise"], epsilon=3.0)
    monkeypatch.setattr(CentralNoise, "server", lambda self, total, settling: total)
    found = fr.audit(run, users=20, attacks=["sum"])
    assert found.kept is False and "is broken" in found.verdicts()[1]


def test_canaries_find_clipping_that_is_missing(data, monkeypatch):
    pytest.importorskip("dp_accounting")
    from federec.stages.clip import Clip

    run = noised(data, ["clip:norm=0.1", "central-noise"], epsilon=3.0)
    monkeypatch.setattr(Clip, "device", lambda self, update, random: update)
    assert fr.audit(run, users=20, attacks=["sum"]).kept is False


@pytest.mark.thorough
def test_canaries_in_single_messages_under_noise(data):
    pytest.importorskip("dp_accounting")
    run = noised(data, ["clip:norm=0.1", "dense", "gaussian:scale=0.2"])
    found = fr.audit(run, users=20, attacks=["sum"], canaries=300)
    assert found.kept and found.empirical.fit.mean > found.promised.epsilon / 3


def test_canaries_do_not_touch_each_other(data):
    federation = Federation.of(noised(data, ["clip:norm=0.1"]))
    canaries = Canaries.drawn(federation, 100, 3)
    update = canaries.update(torch.arange(100), 2.0)
    vectors = torch.zeros(100, 200, 16)
    vectors[update.owner, update.ids] = update.rows["items"]
    flat = vectors.flatten(1)
    assert np.allclose(flat @ flat.T, 4 * np.eye(100), atol=1e-4)
    assert np.allclose(canaries.looked_for(vectors[7]), np.eye(100)[7] * canaries.looked_for(vectors[7])[7])


def test_messages_without_item_tables_have_no_canaries(data):
    pytest.importorskip("dp_accounting")
    method = fr.FedSASRec(dim=8, window=6)
    run = fr.train(method, data, rounds=1, channel=["clip:norm=1", "central-noise"], epsilon=8.0, participation=1.0)
    found = fr.audit(run, users=5, attacks=["size"])
    assert found.empirical is None and found.verdicts()[1].endswith("is promised; no canaries were sent.")
