import numpy as np
import pytest

from federec.data import generate as module
from federec.data.describe import describe
from federec.data.generate import generate
from federec.data.mapped import read_folder
from federec.data.split import _in_order
from federec.errors import UserError

SIZE = (400, 900, 20_000)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "data"
    generate(path, *SIZE)
    return read_folder(path)


def test_as_many_as_asked_for_and_no_pair_twice(data):
    assert (data.n_users, data.n_items, len(data)) == SIZE
    assert len(np.unique(data.users.astype(np.int64) * data.n_items + data.items)) == len(data)


def test_nobody_and_nothing_is_missing(data):
    counts = np.bincount(data.users, minlength=data.n_users)
    assert counts.min() >= 25 and counts.max() <= 76 and counts.std() > 10  # half to one and a half times 50
    assert np.bincount(data.items, minlength=data.n_items).min() >= 1
    users, first = np.unique(data.items, return_index=True)
    assert (np.diff(first) > 0).all()  # codes in the order in which items come up
    assert len(users) == data.n_items


def test_user_by_user_oldest_first(data):
    assert _in_order(data)


def test_few_items_have_most_of_the_interactions(data):
    facts = describe(data)
    assert 0.3 < facts["top_10_percent_items_share"] < 0.7
    assert facts["per_item"]["max"] > 10 * facts["per_item"]["median"]
    # Popularity is that of the docstring: the most popular of ranks 0 to 9 against 90 to 99 and 390 to 399.
    counts = np.sort(np.bincount(data.items))[::-1]
    shares = [1 / (np.arange(start, start + 10) + module.OFFSET).mean() for start in (90, 390)]
    assert counts[90:100].mean() / counts[390:400].mean() == pytest.approx(shares[0] / shares[1], rel=0.25)


@pytest.mark.thorough
@pytest.mark.parametrize("block", [pytest.param(1, marks=pytest.mark.slow), 10, 777, 10**6])
def test_a_pure_function_of_the_seed_whatever_the_block(tmp_path, data, monkeypatch, block):
    monkeypatch.setattr(module, "_BLOCK", block)
    generate(tmp_path / "again", *SIZE)
    generate(tmp_path / "other", *SIZE, seed=1)
    again, other = read_folder(tmp_path / "again"), read_folder(tmp_path / "other")
    assert again.sha256 == data.sha256 != other.sha256
    assert np.array_equal(again.items, data.items) and np.array_equal(again.times, data.times)


def test_as_few_as_one_row_an_item(tmp_path):
    generate(tmp_path / "sparse", 20, 100, 100)
    data = read_folder(tmp_path / "sparse")
    assert np.bincount(data.items).tolist() == [1] * 100


@pytest.mark.parametrize("size", [(10, 100, 29), (10, 100, 99), (10, 100, 400), (10, 5, 30)])
def test_sizes_that_do_not_suit(tmp_path, size):
    with pytest.raises(UserError, match="do not suit"):
        generate(tmp_path / "none", *size)
    assert not (tmp_path / "none").exists()
