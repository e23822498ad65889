import dataclasses

import numpy as np
import pytest
import torch

from federec.runtimes.run import Run
from federec.serving.model import Unknown, best, pair_scores, pair_weights


def test_users_get_what_the_run_recommends(served, served_run):
    for name in ("fedmf", "pfedrec", "fedease"):
        run, model = Run.load(served_run(name)), served(name)
        for user in ("u0", "u7"):
            codes, scores = model.of_user(user, 5)
            expected = run.recommend(user, 5)
            assert [model.catalogue.labels[code] for code in codes] == [each.item for each in expected]
            assert scores == pytest.approx([each.score for each in expected])


@pytest.mark.parametrize("name", ["fedmf", "fedease", "fednext", "fedncf"])
def test_an_anonymous_list_gets_what_a_new_device_would(served, name):
    model = served(name)
    codes, scores = model.of_items(["i3", "i9"], 6)
    known = [model.catalogue.codes[label] for label in ("i3", "i9")]
    expected = model.newcomers.scores([np.array(known)])[0]
    expected[known] = -np.inf
    assert scores == pytest.approx(np.sort(expected)[::-1][:6], abs=1e-5) and not {*known} & set(codes.tolist())


def test_the_quick_way_of_fedease_is_its_own(served):
    model = served("fedease")
    shared = model.newcomers.state.shared | {"recency": torch.tensor([2.0])}
    newcomers = dataclasses.replace(model.newcomers, state=dataclasses.replace(model.newcomers.state, shared=shared))
    history = np.array([5, 1, 8])
    found = pair_scores(pair_weights(newcomers.method, shared), shared, history)
    assert found == pytest.approx(newcomers.scores([history])[0], abs=1e-5)


def test_order_and_repeats(served):
    model = served("fednext")
    assert model.of_items(["i1", "i2", "i1"], 5)[1] == pytest.approx(model.of_items(["i2", "i1"], 5)[1])
    assert model.of_items(["i1", "i2"], 5)[1].tolist() != model.of_items(["i2", "i1"], 5)[1].tolist()


def test_nobody_known_gets_a_list(served):
    model = served()
    codes, scores = model.of_items([], 3)
    assert len(codes) == 3 and scores.tolist() == sorted(model.newcomers.unknown.tolist())[:-4:-1]


def test_who_has_everything_gets_nothing(served):
    model = served()
    assert len(model.of_items([f"i{item}" for item in range(40)], 5)[0]) == 0
    assert len(model.of_items([f"i{item}" for item in range(38)], 5)[0]) == 2


def test_what_is_not_there_is_named(served):
    with pytest.raises(Unknown, match="no user is called 'eve'"):
        served().of_user("eve", 3)
    with pytest.raises(Unknown, match="no item is called 'x'"):
        served().of_items(["i1", "x"], 3)


def test_the_best_come_first_and_only_numbers_count():
    codes, scores = best(np.array([1, 3, np.nan, 3, -np.inf, 2, np.inf], np.float32), 5)
    assert codes.tolist() == [1, 3, 5, 0] and scores.tolist() == [3, 3, 2, 1]
    assert best(np.full(3, np.nan, np.float32), 2)[0].tolist() == []
    assert best(np.zeros(5, np.float32), 2)[0].tolist() == [0, 1]
    assert best(np.zeros(50, np.float32), 2)[0].tolist() == [0, 1]


def test_the_best_of_many():
    scores = np.random.default_rng(0).integers(0, 99, 1003).astype(np.float32)
    scores[:900] = -np.inf
    for k in (1, 5, 62, 63, 103, 500):
        assert best(scores, k)[0].tolist() == np.argsort(-scores, kind="stable")[: min(k, 103)].tolist()


def test_methods_without_strangers_serve_their_users(served):
    model = served("local-only")
    assert model.newcomers is None and len(model.of_user("u1", 3)[0]) == 3
