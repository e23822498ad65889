"""The search for settings: how many trials, what is searched, and what counts as the same search."""

import pytest

from federec.errors import UserError
from federec.reproduction.tune import tune
from federec.runs.config import RunConfig

pytest.importorskip("optuna", reason="pip install federec[results]")


@pytest.fixture
def search(random_split, tmp_path):
    """Search, and return what was found and what was said of each new trial."""
    data = random_split(users=8, items=30, least=4, most=9).data

    def call(trials, over=(), method="fedmf", rounds=1):
        said = []
        config = RunConfig.checked(method=method, rounds=rounds)
        return tune(config, data, over, trials, tmp_path / "trials.db", said.append), said

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
