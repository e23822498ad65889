"""One budget for all: what is searched, with how many trials, and that an interrupted search goes on."""

import json

import pytest

import federec as fr
from federec.data.sets import load
from federec.methods.registry import METHODS
from federec.plugins.registry import build
from federec.reproduction import budget
from federec.reproduction.budget import FIXED, GRIDS, SEED, TRIALS, Search, grid_of, known, space
from federec.reproduction.cells import SEEDS, Cell, Row
from federec.reproduction.grids import TUNED
from federec.reproduction.tune import space_of

optuna = pytest.importorskip("optuna", reason="pip install federec[results]")


@pytest.mark.parametrize("row", TUNED.rows, ids=lambda row: row.label)
def test_every_space_holds_the_methods_own_settings_and_the_known_ones(row):
    config = Cell(row, "tastes", "tuned", 0).config()
    method, hint = config.build(), known(row.method, 1682)
    ends = space_of(method, config, space(method, hint))
    for key, end in ends.items():
        assert end.start is not None, key
        value = hint.get(key, end.start)
        assert value in end.choices if end.choices else end.low <= value <= end.high
    assert not ends.keys() & {*FIXED} - hint.keys()
    assert ends.keys() | GRIDS.get(row.method, {}).keys() or row.method == "popularity"


def test_what_is_searched_is_what_a_method_has():
    assert space(fr.FedMF(), {}).keys() == {"lr", "item_lr_factor", "negatives", "batch", "epochs", "participation"}
    assert space(fr.IALS(), {}).keys() == {"alpha", "l2"}  # not the size of the model
    assert "rho_shared" not in space(fr.FedRecGEL(rho_shared=0.0), {})
    assert space(fr.FedSASRec(), {}).keys() == {"lr", "decay", "dropout"}  # it draws no samples
    assert space(fr.FedMF(lr=0.1), {"lr": 300.0})["lr"] == (0.1 / 30, 900.0)


@pytest.mark.parametrize("name", GRIDS)
def test_closed_forms_try_as_many_settings_and_know_which_won(name):
    method = METHODS[name](**GRIDS[name])
    assert method.most_rounds == TRIALS
    for round_ in (1, 7, TRIALS):
        alone = METHODS[name](**method.tried(round_))
        assert alone.most_rounds == 1 and alone.tried(1) == method.tried(round_)


def test_without_times_fedease_tries_what_ease_does():
    assert grid_of("fedease", ordered=False) == GRIDS["ease"] and grid_of("fedease", ordered=True) == GRIDS["fedease"]
    assert grid_of("fedmf", ordered=True) == {}


def test_settings_to_start_with_are_tried_whatever_was_tried_before(ratings):
    row, data = Row("fedmf", "fedmf", settings={"dim": 4}), load(str(ratings))
    search = Search.of(row, str(ratings), data, 1)
    own, known_too, other, _ = search.lines(data, [], 3)
    *trials, found = search.lines(data, [other, own], 4)
    assert trials[0]["params"] == known_too["params"] != trials[1]["params"] != own["params"]
    assert found["start"] == own["value"]
    (*_, few) = search.lines(data, [], 1)
    assert (few["trials"], few["pruned"]) == (1, 0)


def test_no_trial_has_a_seed_that_is_reported():
    assert max(SEEDS.values()) <= SEED


def test_a_search_stops_what_is_behind_and_goes_on_after_an_interruption(ratings, monkeypatch):
    monkeypatch.setattr(optuna.trial.Trial, "should_prune", lambda trial: trial.number in (2, 4))
    row, data = Row("fedmf", "fedmf", settings={"dim": 4}), load(str(ratings))
    search = Search.of(row, str(ratings), data, 3)
    lines = list(search.lines(data, [], 4))
    *trials, found = json.loads(json.dumps(lines))
    assert [line["pruned"] for line in trials] == [False, False, True, False]
    assert trials[0]["params"]["lr"] == 0.1 and trials[1]["params"]["lr"] == known("fedmf", 30)["lr"]
    finished = [line["value"] for line in trials if not line["pruned"]]
    assert (found["trials"], found["pruned"], found["value"]) == (4, 1, max(finished))
    assert found["start"] == trials[0]["value"] and found["best"].keys() == found["space"].keys()
    others = [{**trials[0], "rounds": 9}, {**trials[0], "params": trials[0]["params"] | {"lr": 1e9}}]
    assert search.includes(trials[0]) and not any(map(search.includes, others))
    *more, again = search.lines(data, [*others, *trials], 5)
    assert [line["pruned"] for line in more] == [True] and (again["trials"], again["pruned"]) == (5, 2)
    assert again["value"] == found["value"] and more[0]["params"] not in [line["params"] for line in trials]


def test_a_closed_form_is_searched_in_one_run(ratings, monkeypatch):
    monkeypatch.setitem(budget.GRIDS, "fedease", {"l2": [1.0, 10.0], "recency": [0.0, 2.0]})
    data = load(str(ratings))
    (found,) = Search.of(Row("fedease", "fedease"), str(ratings), data, None).lines(data, [], 24)
    assert found["trials"] == 4 and found["best"] == {k: [v] for k, v in zip(*_winner(ratings), strict=True)}


def _winner(ratings):
    method = build("fedease", (), {"l2": [1.0, 10.0], "recency": [0.0, 2.0]})
    best = fr.train(method, str(ratings), seed=SEED).result["best_round"]
    return method.trial(best)._fields, method.trial(best)
