"""Both engines do the same through one interface: play, rank with rows of their own and of others, score."""

import logging
import time

import pytest
import torch

from federec.cohort.draw import Devices
from federec.evaluation.evaluator import Evaluator
from federec.federation.channel import Link
from federec.federation.state import State
from federec.runtimes import engines
from federec.runtimes.engines import Fused, Stacked

USERS = 40


class Recorder:
    """Keeps each user's scores of the same items."""

    def __init__(self, items):
        self.items, self.scores = items, {}
        self.whole = torch.ones(USERS, dtype=torch.bool)

    def add(self, users, score):
        for user, scores in zip(users.tolist(), score(self.items.expand(len(users), -1)), strict=True):
            assert user not in self.scores
            self.scores[user] = scores


@pytest.fixture
def make(small, random_split):
    split = random_split(users=USERS, items=60, least=4, most=20)
    devices, method = Devices.of(split, False), small("pfedrec")

    def engine(kind, evaluated=None):
        if kind == "stacked":
            return Stacked(method, devices, 3, Link.of(method))
        return Fused(
            method, devices, 3, Link.of(method), torch.ones(USERS, dtype=torch.bool) if evaluated is None else evaluated
        )

    def start():
        return State.start(method, 60, USERS, 3)

    return engine, start, Evaluator(split, 3)


def test_engines_agree_on_every_score(make):
    engine, start, _ = make
    everyone, items, found = torch.arange(USERS), torch.arange(60)[None], {}
    for kind in ("stacked", "fused"):
        state, one, two, other = start(), *(Recorder(items) for _ in range(3))
        report, _ = engine(kind).play(state, everyone, 1, [one, two], list, other)
        assert one.scores.keys() == two.scores.keys() == other.scores.keys() == set(range(USERS))
        assert all(torch.equal(one.scores[user], two.scores[user]) for user in range(USERS))
        scored = engine(kind).score(state, everyone, items.expand(USERS, -1))
        kinds = [torch.stack([ranking.scores[user] for user in range(USERS)]) for ranking in (one, other)]
        found[kind] = [*kinds, scored, state.shared["items"], torch.tensor(report.loss)]
    for slow, quick in zip(found["stacked"], found["fused"], strict=True):
        torch.testing.assert_close(quick, slow, rtol=1e-4, atol=1e-5)
    own, other, server = found["stacked"][:3]
    assert not torch.allclose(own, other) and not torch.allclose(own, server)


@pytest.mark.parametrize("kind", ["stacked", "fused"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_rankings_do_not_change_what_is_learned(make, kind, count):
    engine, start, evaluator = make
    quiet, watched = start(), start()
    engine(kind).play(quiet, torch.arange(USERS), 1, [], list)
    rankings = [evaluator.sampled(), evaluator.full(4)][:count]
    engine(kind).play(watched, torch.arange(USERS), 1, rankings, list)
    for name, value in quiet.tensors().items():
        torch.testing.assert_close(watched.tensors()[name], value)
    assert all(len(ranking.missing()) == 0 for ranking in rankings[:1])


def test_a_device_that_is_not_evaluated_learns_but_scores_nothing(make):
    engine, start, _ = make
    evaluated = torch.arange(USERS) % 4 > 0
    state, ranking = start(), Recorder(torch.arange(60)[None])
    before = state.copy()
    engine("fused", evaluated).play(state, torch.arange(USERS), 1, [ranking], list)
    assert ranking.scores.keys() == set(evaluated.nonzero().flatten().tolist())
    moved = [(value != before.private[name]).flatten(1).any(1) for name, value in state.private.items()]
    assert torch.stack(moved).any(0).all()


@pytest.mark.parametrize(("loaded", "said"), [(0.01, ["compiling kernels, once (about 10 s)"]), (60.0, [])])
def test_compiling_is_logged_where_loading_would_be_over(monkeypatch, caplog, small, loaded, said):
    monkeypatch.setattr(engines, "_LOADED", loaded)
    monkeypatch.setattr(engines, "warm_up", lambda *_: time.sleep(0.1))
    devices = type("Devices", (), {"ptr": torch.zeros(1), "n_items": 1})()
    engine = Fused(small("pfedrec"), devices, 0, None, torch.zeros(1))
    with caplog.at_level(logging.INFO, "federec"):
        assert engine.warm_up(None) >= 0.1
        assert engine.warm_up(None) == 0.0
    assert caplog.messages == said
