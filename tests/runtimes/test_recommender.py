"""A run as a recommender for many users at once: the same as for one user after the other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import federec as fr
from federec.methods.registry import METHODS

USERS, ITEMS = 12, 30


@pytest.fixture(scope="module")
def data(random_split):
    return random_split(users=USERS, items=ITEMS, least=5, most=9).data


@pytest.fixture(scope="module")
def run(data):
    return fr.train(fr.FedMF(dim=4), data, rounds=2)


def rows(frame):
    return [tuple(row) for row in zip(*(frame[key].to_list() for key in frame.columns), strict=True)]


@pytest.mark.parametrize("name", METHODS)
def test_many_users_get_what_each_gets_alone(data, small, name):
    run = fr.train(small(name), data, rounds=2, participation=0.5, evaluate_users=4)
    frame = run.recommend(users="all", k=5)
    scores = run.score("all")
    assert scores.shape == (USERS, ITEMS) and list(frame.columns) == ["user", "position", "item", "score", "title"]
    for code, user in enumerate(data.user_ids.tolist()):
        alone = run.recommend(user, k=5)
        mine = [row for row in rows(frame) if row[0] == user]
        assert [row[1] for row in mine] == [1, 2, 3, 4, 5]
        assert [row[2] for row in mine] == [item.item for item in alone]
        assert [row[3] for row in mine] == pytest.approx([item.score for item in alone], rel=1e-4, abs=1e-5)
        assert [row[3] for row in mine] == pytest.approx([scores[code, row[2]] for row in mine], rel=1e-4, abs=1e-5)


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, USERS - 1), max_size=6),
    st.dictionaries(st.integers(0, USERS - 1), st.lists(st.integers(0, ITEMS - 1), max_size=40), max_size=3),
    st.lists(st.integers(0, ITEMS - 1), max_size=40),
    st.booleans(),
    st.integers(1, ITEMS + 5),
)
def test_what_is_excluded_is_left_out_and_nothing_else(data, run, users, own, common, known, k):
    """Any users, also twice; any items; any number."""
    everything, scores = {*range(ITEMS)}, run.score("all")
    for exclude in (own, common, np.array(common, int)):
        frame = run.recommend(users=users, k=k, exclude=exclude, exclude_known=known)
        expected = []
        for user in users:
            out = {*own.get(user, ())} if exclude is own else {*common}
            out |= {*data.items[data.users == user].tolist()} if known else set()
            left = sorted(everything - out, key=lambda item: (-scores[user, item], item))[:k]
            expected += [(user, place, item) for place, item in enumerate(left, 1)]
        assert [row[:3] for row in rows(frame)] == expected


def test_scores_are_those_of_the_asked_pairs(run):
    whole = run.score("all")
    some = run.score(users=[7, 2, 7], items=[20, 3])
    np.testing.assert_allclose(some, whole[[7, 2, 7]][:, [20, 3]], rtol=1e-5)
    assert run.score(users=[], items=[1]).shape == (0, 1)


def test_similar_items_have_the_largest_cosine(data, run):
    table = run.point.best_state.shared["items"].numpy()
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    cosine = unit @ unit[5]
    expected = [item for item in np.argsort(-cosine) if item != 5][:4]
    found = run.similar_items(5, k=4)
    assert [item.item for item in found] == expected
    assert [item.score for item in found] == pytest.approx(cosine[expected], rel=1e-5)
    assert fr.train("mf", data, rounds=1).similar_items("5", k=2)


@pytest.mark.parametrize("name", ["ease", "fedease"])
def test_similar_items_speak_for_the_same_others(data, small, name):
    run = fr.train(small(name), data, rounds=1)
    weights = run.point.best_state.shared["weights"].numpy()
    found = run.similar_items(5, k=3)
    length = np.maximum(np.linalg.norm(weights, axis=1), 1e-12)  # nobody may have trained on an item
    cosine = weights @ weights[5] / length / length[5]
    assert [item.item for item in found] == [item for item in np.argsort(-cosine) if item != 5][:3]
    assert [item.score for item in found] == pytest.approx(cosine[[item.item for item in found]], rel=1e-4)


@pytest.mark.parametrize("name", ["popularity", "metamf"])
def test_methods_without_vectors_of_items_say_so(data, small, name):
    with pytest.raises(fr.UserError, match=f"'{name}' shares no vectors of items"):
        fr.train(small(name), data, rounds=1).similar_items(1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda run: run.recommend(), "name one user"),
        (lambda run: run.recommend(1, users=[2]), "name one user"),
        (lambda run: run.recommend(users="everybody"), "users='everybody': give a list of users, or 'all'"),
        (lambda run: run.recommend(users=[1, 111]), "user '111' is not in this data set - did you mean '11'?"),
        (lambda run: run.recommend(users=[1, "Ada"]), "user 'Ada' is not in this data set; its users are like 0, 1, 2"),
        (lambda run: run.recommend(1, exclude=["x"]), "item 'x' is not in this data set"),
        (lambda run: run.recommend(1, exclude={99: [1]}), "user '99' is not in this data set"),
        (lambda run: run.recommend(users=[1], k=0), "k=0: give a whole number of at least 1"),
        (lambda run: run.similar_items(1, k=0), "k=0: give a whole number of at least 1"),
        (lambda run: run.recommend(1, k="3"), "k='3': give a whole number of at least 1"),
        (lambda run: run.recommend(1, k=1.5), "k=1.5: give a whole number"),
        (lambda run: run.recommend(1, k=True), "k=True: give a whole number"),
        (lambda run: run.similar_items(1, k="a"), "k='a': give a whole number"),
        (lambda run: run.recommend(users=3), "users=3: give a list of users, or 'all'"),
        (lambda run: run.recommend(users=None, user=None), "name one user"),
        (lambda run: run.recommend(1, exclude=11), "exclude=11: give a list of items"),
        (lambda run: run.recommend(1, exclude="11"), "exclude='11': give a list of items"),
        (lambda run: run.recommend(1, exclude={1: 11}), "exclude[1]=11: give a list of items"),
        (lambda run: run.recommend(1, exclude={1: "11"}), "exclude[1]='11': give a list of items"),
        (lambda run: run.score([1], 3), "items=3: give a list of items"),
        (lambda run: run.score([1], "11"), "items='11': give a list of items"),
        (lambda run: run.score(1.5), "users=1.5: give a list of users"),
        (lambda run: run.similar_items(300), "item '300' is not in this data set"),
        (lambda run: run.score([1], items=["a"]), "item 'a' is not in this data set"),
    ],
)
def test_a_wrong_question_is_refused_in_one_line(run, call, words):
    with pytest.raises(fr.UserError) as refused:
        call(run)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_a_user_who_knows_everything_gets_nothing(run):
    assert run.recommend(1, exclude=range(ITEMS)) == []
    assert len(run.recommend(users=[1, 2], exclude={1: range(ITEMS)}, k=3)) == 3


def test_curves_have_a_row_a_round(run):
    curves = run.curves()
    assert curves["round"].to_list() == [1, 2]
    assert curves["loss"].to_list() == [line["loss"] for line in run.history]
    assert curves["test.ndcg@10"].to_list() == [line["test"]["ndcg@10"] for line in run.history]
    assert {"up_bytes", "down_bytes", "seconds.train", "valid.hr@10"} <= {*curves.columns}


def test_every_user_is_there_with_what_it_contributes(data, run, split_of):
    frame = run.per_user()
    assert sorted(frame["user"].to_list()) == list(range(USERS))
    counts = np.bincount(data.users)
    assert frame["training_items"].to_list() == [counts[user] - 2 for user in frame["user"].to_list()]
    for ranking in ("sampled", "full"):
        for metric in ("hr@10", "ndcg@10", "mrr@10"):
            assert frame[f"{ranking}.{metric}"].mean() == pytest.approx(run.test[ranking][metric])
        hit = [position <= 10 for position in frame[f"{ranking}.position"].to_list()]
        assert hit == [bool(value) for value in frame[f"{ranking}.hr@10"].to_list()]


def test_a_sample_of_the_users_is_told_by_their_ids(data):
    run = fr.train(fr.FedMF(dim=4), data, rounds=1, evaluate_users=5)
    frame = run.per_user()
    full = fr.train(fr.FedMF(dim=4), data, rounds=1).per_user()
    whole = dict(zip(full["user"].to_list(), full["full.position"].to_list(), strict=True))
    assert len(frame) == 5
    assert frame["full.position"].to_list() == [whole[user] for user in frame["user"].to_list()]
