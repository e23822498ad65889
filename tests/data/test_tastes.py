import hashlib

import numpy as np
import pytest

from federec.data.interactions import Interactions
from federec.data.tastes import FEWEST, generate
from federec.errors import UserError

SHA256 = "8e489c51755a21ad01b1c1a0d9f2feefc7c1595b92119e5ce14c028ed2a4c1bd"


@pytest.fixture(scope="module")
def data() -> Interactions:
    return generate()


def check_form(data: Interactions, users: int, items: int, rows: int) -> None:
    """What holds for every size: exact totals, distinct pairs, rows in time, codes as they appear."""
    assert (data.n_users, data.n_items, len(data), data.source_rows) == (users, items, rows, rows)
    assert np.array_equal(np.sort(data.user_ids), np.arange(1, users + 1))
    assert np.array_equal(np.sort(data.item_ids), np.arange(1, items + 1))
    assert len(np.unique(data.users.astype(np.int64) * items + data.items)) == rows
    assert np.bincount(data.users).min() >= FEWEST
    assert data.times is not None and (np.diff(data.times) >= 0).all() and (data.times % 1 == 0).all()
    for codes in (data.users, data.items):
        assert codes.dtype == np.int32
        first = np.unique(codes, return_index=True)[1]
        assert (np.diff(first) > 0).all()
    assert data.ratings is not None and set(data.ratings.tolist()) == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert set(data.titles) == {str(i) for i in data.item_ids} and len(set(data.titles.values())) == items


def newest_first(data: Interactions) -> np.ndarray:
    """Each row's place in its user's history: 0 is the newest; of rows in the same second the first."""
    assert data.times is not None
    order = np.lexsort((np.arange(len(data)), -data.times, data.users))
    count = np.bincount(data.users)
    place = np.empty(len(data), dtype=np.int64)
    place[order] = np.arange(len(data)) - np.repeat(np.cumsum(count) - count, count)
    return place


def test_it_is_the_same_everywhere_and_always(data: Interactions) -> None:
    again = generate()
    for field in ("users", "items", "user_ids", "item_ids", "times", "ratings"):
        assert np.array_equal(getattr(data, field), getattr(again, field))
    assert data.titles == again.titles
    assert data.sha256 == again.sha256 == SHA256


def test_the_hash_is_of_the_rows_as_a_csv_file(data: Interactions) -> None:
    assert data.times is not None and data.ratings is not None
    rows = zip(data.user_ids[data.users], data.item_ids[data.items], data.ratings, data.times, strict=True)
    text = "user,item,rating,timestamp\n" + "".join(f"{u},{i},{r:.0f},{t:.0f}\n" for u, i, r, t in rows)
    assert hashlib.sha256(text.encode()).hexdigest() == SHA256


def test_size_and_skew_are_those_of_movielens_100k(data: Interactions) -> None:
    check_form(data, 943, 1682, 100_000)
    activity, popularity = np.bincount(data.users), np.sort(np.bincount(data.items))[::-1]
    assert 55 <= np.median(activity) <= 75 and 650 <= activity.max() <= 800
    assert 0.40 <= popularity[:168].sum() / len(data) <= 0.50
    assert 400 <= popularity[0] <= 620 and 0.1 <= (popularity <= 5).mean() <= 0.3


def test_some_rows_share_a_second_with_the_row_before(data: Interactions) -> None:
    assert data.times is not None
    distinct = len(np.unique(np.stack([data.users, data.times]), axis=1).T)
    assert 0.6 <= distinct / len(data) <= 0.8


def test_tastes_can_be_learnt(data: Interactions) -> None:
    """Item-item cosine ranks the newest item, among 99 unseen ones, clearly better than popularity does."""
    place = newest_first(data)
    train = np.zeros((data.n_users, data.n_items), dtype=np.float32)
    train[data.users[place > 1], data.items[place > 1]] = 1
    seen = np.zeros_like(train)
    seen[data.users, data.items] = 1
    truth = np.empty(data.n_users, dtype=np.int64)
    truth[data.users[place == 0]] = data.items[place == 0]
    noise = np.random.default_rng(0).random(train.shape) + seen
    candidates = np.column_stack([truth, np.argpartition(noise, 99, axis=1)[:, :99]])

    def hit_ratio(scores: np.ndarray) -> float:
        scores = np.take_along_axis(scores, candidates, axis=1)
        return float(((scores[:, 1:] >= scores[:, :1]).sum(axis=1) < 10).mean())

    count = train.sum(axis=0)
    norm = np.sqrt(np.maximum(count, 1))
    cosine = train.T @ train / np.outer(norm, norm)
    np.fill_diagonal(cosine, 0)
    popularity, neighbours = hit_ratio(np.broadcast_to(count, train.shape)), hit_ratio(train @ cosine)
    assert 0.33 <= popularity <= 0.47
    assert neighbours >= popularity + 0.10


def test_tastes_drift(data: Interactions) -> None:
    """The newest item's genre is much more common among the ten rows before it than among the first ten."""
    place = newest_first(data)
    genre = np.array([data.titles[str(i)].split()[1] for i in data.item_ids])[data.items]
    newest = np.empty(data.n_users, dtype=genre.dtype)
    newest[data.users[place == 0]] = genre[place == 0]
    same = genre == newest[data.users]
    oldest = np.bincount(data.users)[data.users] - 1 - place
    assert same[(place > 0) & (place <= 10)].mean() > 1.5 * same[oldest < 10].mean()


def test_another_seed_is_another_draw() -> None:
    one, other = generate(50, 200, 2000), generate(50, 200, 2000, seed=1)
    check_form(other, 50, 200, 2000)
    assert one.sha256 != other.sha256 and one.titles != other.titles


@pytest.mark.parametrize(("users", "items", "rows"), [(50, 200, 2000), (20, 100, 1000), (300, 80, 6001)])
def test_other_sizes(users: int, items: int, rows: int) -> None:
    check_form(generate(users, items, rows), users, items, rows)


@pytest.mark.parametrize(("users", "items", "rows"), [(0, 0, 0), (50, 200, 999), (50, 200, 5001), (50, 500, 2000)])
def test_sizes_that_do_not_fit_are_refused(users: int, items: int, rows: int) -> None:
    with pytest.raises(UserError, match=f"{rows} interactions do not suit {users} users and {items} items"):
        generate(users, items, rows)
