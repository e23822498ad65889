"""A run as a recommender, and its life in a folder."""

from dataclasses import replace

import numpy as np
import pytest

import federec as fr
from federec.methods.registry import METHODS
from federec.runtimes.run import fingerprint


@pytest.fixture(scope="module")
def data(random_split):
    plain = random_split(users=10, items=40).data
    users = np.array(["Ольга", "山田", "O'Neil", "نور", "[b]x", "é", "e\u0301", "a b", "0", "00"], object)
    items = np.array([f"фильм {number}" for number in range(40)], object)
    return replace(plain, user_ids=users, item_ids=items, titles={"фильм 1": "One [1]"})


@pytest.mark.parametrize("name", METHODS)
def test_recommends_what_the_user_has_not_touched(tmp_path, data, small, name):
    run = fr.train(small(name), data, rounds=2, participation=0.5)
    run.save(tmp_path / "run")
    loaded = fr.Run.load(tmp_path / "run", data=data)
    for code, user in enumerate(data.user_ids):
        touched = {data.item_label(item) for item in data.items[data.users == code]}
        listed = run.recommend(user, k=100)
        assert {item.item for item in listed} == set(data.item_ids) - touched
        assert [item.score for item in listed] == sorted((item.score for item in listed), reverse=True)
        assert run.recommend(user, k=5) == listed[:5]
        assert loaded.recommend(user, k=100) == listed
    assert {item.title for item in run.recommend("é", k=40) if item.item == "фильм 1"} <= {"One [1]"}


def test_a_saved_run_is_the_run(tmp_path, data):
    run = fr.train(fr.PFedRec(dim=4), data, rounds=2, seed=5, out=tmp_path / "kept")
    run.save(tmp_path / "saved")
    kept, saved = tmp_path / "kept", tmp_path / "saved"
    names = sorted(str(file.relative_to(kept)) for file in kept.rglob("*") if file.is_file())
    assert names == sorted(str(file.relative_to(saved)) for file in saved.rglob("*") if file.is_file())
    assert all((kept / name).read_bytes() == (saved / name).read_bytes() for name in names)
    loaded = fr.Run.load(saved, data)
    assert (loaded.config, loaded.result, loaded.history) == (run.config, run.result, run.history)
    with pytest.raises(fr.UserError, match="finished run already"):
        run.save(saved)


def test_unknown_users_and_bad_numbers(data):
    run = fr.train("popularity", data)
    with pytest.raises(fr.UserError, match="user 'Olga' is not in this data set"):
        run.recommend("Olga")
    with pytest.raises(fr.UserError, match="k=0"):
        run.recommend("é", k=0)


def test_numbers_and_their_text_are_the_same_user(random_split):
    run = fr.train("popularity", random_split().data)
    assert run.recommend(3) == run.recommend("3")
    assert isinstance(run.recommend(3)[0].item, int)


def test_only_the_data_of_the_run_will_do(tmp_path, data):
    fr.train("popularity", data, out=tmp_path / "run")
    for other in (
        replace(data, items=np.roll(data.items, 1)),
        replace(data, times=None),
        replace(data, user_ids=data.user_ids[::-1]),
    ):
        assert fingerprint(other) != fingerprint(data)
        with pytest.raises(fr.UserError, match="has changed since"):
            fr.Run.load(tmp_path / "run", data=other)
    with pytest.raises(fr.UserError, match="the data, 'small', was in memory"):
        fr.Run.load(tmp_path / "run")


def test_a_model_that_diverged_recommends_no_nonsense(data):
    run = fr.train(fr.PFedRec(dim=4, lr=1e30), data, rounds=1)
    run.point.best_state.shared["items"].fill_(float("nan"))
    assert run.recommend("é") == []


def test_a_run_on_a_gpu_can_be_asked_where_there_is_none(tmp_path, data):
    fr.train(fr.PFedRec(dim=4), data, rounds=1, out=tmp_path / "run")
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace("device: cpu", "device: cuda:99"))
    assert fr.Run.load(tmp_path / "run", data).recommend("é")


@pytest.mark.thorough
def test_the_example_of_the_package():
    data = fr.load("tastes")
    run = fr.train(fr.PFedRec(dim=8), data, rounds=1, protocol="clean", seed=0)
    assert 0 < run.test["sampled"]["hr@10"] < 1
    assert len(run.recommend(user=42, k=10)) == 10


def test_a_run_shows_itself(data):
    run = fr.train(fr.FedMF(dim=4), replace(data, name="<b>"), rounds=3)
    figures = f"full ndcg@10 {run.test['full']['ndcg@10']:.4f}, sampled hr@10 {run.test['sampled']['hr@10']:.4f}"
    assert repr(run) == f"Run(fedmf on <b>, clean, seed 0, round {run.result['best_round']} of 3: {figures})"
    html = run._repr_html_()
    assert "fedmf on &lt;b&gt;" in html and f"{run.test['full']['ndcg@10']:.4f}" in html and "<svg" in html
