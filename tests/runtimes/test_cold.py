import pytest

import federec as fr
from federec.errors import UserError
from federec.runtimes.cold import cold_start


@pytest.fixture(scope="module")
def data(random_split):
    return random_split(users=30, items=60, least=5, most=15).data


def test_new_devices_are_ranked_beside_popularity(data):
    found = cold_start(fr.train(fr.FedEASE(l2=[30.0]), data, progress=False))
    popular = fr.train(fr.Popularity(), data, progress=False)
    for kind in ("sampled", "full"):
        for metric in ("hr@10", "ndcg@10"):
            assert found["popularity"][kind][metric] == pytest.approx(popular.test[kind][metric])
            # Without items FedEASE ranks by popularity
            assert found["users"]["0"][kind][metric] == pytest.approx(popular.test[kind][metric])
    assert set(found["users"]) == {"0", "1", "3", "5"}
    assert found["new_items"]["items"] == 3 and found["new_items"]["fair"] == pytest.approx(3 / 63)


def test_a_device_that_knows_all_its_items_is_the_device_of_the_fresh_test(data):
    run = fr.train(fr.FedEASE(l2=[30.0]), data, progress=False)
    found = cold_start(run, known=[1000])["users"]["1000"]
    assert found["full"]["ndcg@10"] == pytest.approx(run.test["fresh"]["full"]["ndcg@10"])


def test_new_devices_know_nothing_that_was_learned(data, small):
    """Private parameters of the run's devices are of no use to a newcomer: noise in their place changes nothing."""
    run = fr.train(small("pfedrec"), data, rounds=2, progress=False)
    before = cold_start(run, known=[0, 3])
    for value in run.point.best_state.private.values():
        value.fill_(float("nan"))
    after = cold_start(run, known=[0, 3])
    assert before["users"] == after["users"] and before["new_items"] == after["new_items"]


def test_references_have_no_devices(data):
    with pytest.raises(UserError, match="centralised reference"):
        cold_start(fr.train(fr.EASE(l2=[30.0]), data, progress=False))
