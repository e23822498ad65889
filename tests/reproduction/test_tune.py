"""The search for settings: how many trials, what is searched, and what counts as the same search."""

import re
import sys

import pytest

import federec as fr
from federec.errors import UserError
from federec.reproduction.tune import search as search_settings
from federec.reproduction.tune import space_of, tune
from federec.runs.config import RunConfig

pytest.importorskip("optuna", reason="pip install federec[results]")


@pytest.fixture
def search(random_split, tmp_path):
    """Search, and return what was found and what was said of each new trial."""
    data = random_split(users=8, items=30, least=4, most=9).data

    def call(trials, over=(), method="fedmf", rounds=1):
        said = []
        config = RunConfig.checked(method=method, rounds=rounds)
        found = search_settings(config, data, over, trials, tmp_path / "trials.db", said.append)
        return found.best, said

    return call


@pytest.mark.thorough
def test_the_defaults_are_the_first_trial_and_the_same_search_goes_on(search):
    found, said = search(1)
    assert found == {"lr": 0.1, "item_lr_factor": 80.0} and len(said) == 1
    assert search(1)[1] == []
    _, more = search(3)
    assert [words.split(":")[0] for words in more] == ["trial 2", "trial 3"]
    _, last = search(4)  # not once more what the search before it began with
    tried = [words.split(" with ")[1] for words in more + last]
    assert len({*tried}) == 3


@pytest.mark.thorough
def test_other_rounds_or_settings_are_another_search(search):
    search(1)
    for other in ({"rounds": 2}, {"over": ["lr"]}):
        found, said = search(1, **other)
        assert len(said) == 1 and set(found) == set(other.get("over", ("lr", "item_lr_factor")))


def test_what_cannot_be_searched_is_refused(search):
    with pytest.raises(UserError, match="has no setting 'dim' to search"):
        search(1, over=["dim"])
    with pytest.raises(UserError, match="'popularity' has no setting to search"):
        search(1, method="popularity")


@pytest.mark.thorough
def test_a_search_in_python_gives_a_method_to_train(random_split):
    data, said = random_split(users=8, items=30, least=4, most=9).data, []
    asked = {"dim": [2, 4], "lr": (0.01, 1.0), "batch": (2, 8)}
    found = tune(fr.FedMF(dim=4) | fr.SAM, data, over=asked, trials=3, rounds=1, say=said.append)
    frame, metric = found.trials, f"valid {found.metric}"
    assert found.metric == "full.ndcg@10" and len(frame) == len(said) == 3
    assert found.value == max(frame[metric])
    assert (frame["dim"][0], frame["lr"][0]) == (4, 0.1)  # the method's own settings; its batch is out of range
    assert all(2 <= batch <= 8 and isinstance(int(batch), int) for batch in frame["batch"])
    best = max(range(3), key=lambda row: frame[metric][row])
    assert found.best == {key: frame[key][best] for key in asked}
    assert found.method == fr.FedMF(**found.best) | fr.SAM
    chosen = tune("fedmf", data, over=["lr"], trials=1, rounds=1, select="sampled.hr@5")
    assert (chosen.metric, chosen.best) == ("sampled.hr@5", {"lr": 0.1})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"over": {"dmi": [1]}}, "'fedmf' has no setting 'dmi' - did you mean 'dim'"),
        ({"over": {"dim": (8, 4)}}, "neither a range"),
        ({"over": {"dim": []}}, "neither a range"),
        ({"select": "ndcg"}, "unknown metric 'ndcg'"),
        ({"trials": 0}, "trials=0"),
        ({"trials": "x"}, "trials='x': give a whole number of at least 1"),
        ({"over": 3}, "over=3: name settings, such as ['lr']"),
        ({"over": [3]}, "has no setting '3' to search"),
        ({"over": {"dim": ["a"]}}, "setting dim='a' of 'fedmf': input should be a valid integer"),
        ({"over": {"dim": [8, -8]}}, "setting dim=-8 of 'fedmf'"),
        ({"over": {"dim": 8}}, "neither a range"),
        ({"over": {"epochs": (1, 1000)}}, "setting epochs=1000 of 'fedmf'"),
        ({"dim": 8}, "'dim' is a setting of the method; give it there: fr.tune(fr.FedMF(dim=8), ...)"),
        ({"trails": 8}, "fr.tune has no argument 'trails' - did you mean 'trials'?"),
        ({"out": 3}, "3 is no path"),
        ({"split": "tmie"}, "did you mean 'time'"),
        ({"channel": 3}, "channel=3: give stages"),
        ({"rounds": 0}, "rounds=0"),
        ({"protocol": "clear"}, "did you mean 'clean'"),
    ],
)
def test_a_senseless_search_is_refused_in_one_line(random_split, capfd, values, words):
    with pytest.raises(UserError, match=re.escape(words)) as refused:
        tune("fedmf", random_split().data, **{"rounds": 1, "trials": 1} | values)
    assert "\n" not in str(refused.value)
    assert capfd.readouterr() == ("", "")  # Optuna would print a traceback


def test_a_search_trains_as_a_run_does(random_split):
    """A trial with the method's own settings is the run with the same arguments."""
    data = random_split(users=12, items=40, least=6, most=12).data
    given = {"rounds": 3, "seed": 1, "split": "ratio", "participation": 0.5, "patience": 2, "evaluate_users": 5}
    given |= {"channel": fr.Clip(norm=0.01), "aggregator": "touched-mean", "plugins": "sam"}
    found = tune("fedmf", data, over={"dim": [16]}, trials=1, **given)
    run = fr.train(fr.FedMF(dim=16), data, **given)
    assert found.value == run.valid["full"]["ndcg@10"]
    assert found.method == run.method


def test_fractions_are_searched_up_to_1():
    ends = space_of(fr.FedRAP(), RunConfig(), ["step_decay", "lr"])
    assert ends["step_decay"].high == 1.0 and ends["lr"].high == fr.FedRAP().lr * 30


def test_a_search_shows_how_it_goes(random_split, capsys):
    data = random_split(users=8, items=30, least=4, most=9).data
    given = {"over": {"dim": [2, 4, 8]}, "trials": 3, "rounds": 1}
    found = tune("fedmf", data, **given, progress=True)
    said = capsys.readouterr().err
    assert "trial 1/3  round 1/1" in said and "trial 2: valid full ndcg@10" in said
    tune("fedmf", data, **given)
    assert capsys.readouterr().err == ""  # neither a notebook nor a terminal
    first, *others = re.findall(r"<tr><td>\d</td><td>([\d.]+)</td>", found._repr_html_())
    assert len(others) == 2 and first == f"{found.value:.4g}"


def test_without_optuna_the_remedy_is_named(random_split, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"needs the package optuna; install it with: pip install 'federec\[results\]'"):
        tune("fedmf", random_split().data, trials=1)
