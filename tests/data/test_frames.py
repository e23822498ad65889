import datetime as dt
import decimal
import sys

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federec.data.frames import is_frame
from federec.data.sets import load
from federec.errors import UserError

pd = pytest.importorskip("pandas", reason="pandas is not installed")
pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

ROWS = {"who": ["a", "b", "a", "c"], "movie": [10, 20, 30, 10], "stars": [1.0, 2.5, 3.0, 5.0], "when": [5, 6, 7, 8]}
NAMED = {"user": "who"}

KINDS = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "lazy": pl.LazyFrame,
    "pyarrow": pa.table,
    "record batch": lambda rows: pa.table(rows).to_batches()[0],
    "stream": lambda rows: pa.table(rows).to_reader(),
}


def listed(data):
    """Every row by its labels, with time and rating."""
    columns = [data.user_ids[data.users].tolist(), data.item_ids[data.items].tolist()]
    columns += [[None] * len(data) if array is None else array.tolist() for array in (data.times, data.ratings)]
    return list(zip(*columns, strict=True))


def refused(source, **options):
    with pytest.raises(UserError) as caught:
        load(source, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_frame_is_read_like_the_file(kind, tmp_path):
    pl.DataFrame(ROWS).write_csv(tmp_path / "rows.csv")
    file, frame = load(tmp_path / "rows.csv", NAMED), load(KINDS[kind](ROWS), NAMED)
    assert listed(frame) == listed(file) == [("a", 10, 5, 1), ("b", 20, 6, 2.5), ("a", 30, 7, 3), ("c", 10, 8, 5)]
    assert frame.columns == file.columns == {"user": "who", "item": "movie", "rating": "stars", "timestamp": "when"}
    assert (frame.name, frame.unused, frame.sha256) == ("frame", (), "")
    assert load(KINDS[kind](ROWS), NAMED, name="mine").name == "mine"


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(-5, 5), st.sampled_from(["x", "ж", "007", "a b", "10"]), st.integers(0, 4)),
        min_size=1,
        max_size=12,
    ),
    kind=st.sampled_from(sorted(KINDS)),
)
def test_any_rows_are_the_same_from_every_frame(rows, kind):
    users, items, times = map(list, zip(*rows, strict=True))
    columns = {"user": users, "item": items, "time": times}
    newest = {}
    for user, item, time in rows:
        newest[user, item] = max(time, newest.get((user, item), 0))
    found = {(user, str(item)): time for user, item, time, _ in listed(load(KINDS[kind](columns)))}
    assert found == newest


frame = pd.DataFrame({"user": ["a", "b"], "item": [1, 2], "when": [0, 86400]})
as_time = pd.to_datetime(frame["when"], unit="s")


@pytest.mark.parametrize(
    "columns",
    [
        {"user": frame["user"].astype(object)},
        {"user": frame["user"].astype("category")},
        {"user": frame["user"].astype(pd.StringDtype("python"))},
        {"user": frame["user"].astype(pd.StringDtype("pyarrow"))},
        {"user": frame["user"].astype(pd.ArrowDtype(pa.string()))},
        {"item": frame["item"].astype("Int32")},
        {"item": frame["item"].astype(float)},
        {"item": frame["item"].astype("category")},
        {"item": frame["item"].astype(object)},
        {"item": frame["item"].astype(pd.SparseDtype(int))},
        {"item": [decimal.Decimal("1.00"), decimal.Decimal("2.00")]},
        {"item": ["1", 2]},
        {"when": as_time},
        {"when": as_time.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")},
        {"when": as_time.astype("datetime64[s]")},
        {"when": as_time.astype(pd.ArrowDtype(pa.timestamp("ns")))},
        {"when": [dt.date(1970, 1, 1), dt.date(1970, 1, 2)]},
        {"when": [dt.datetime(1970, 1, 1), dt.datetime(1970, 1, 2)]},
        {"when": ["1970-01-01", 86400]},
        {"when": frame["when"].astype("float32")},
    ],
    ids=lambda columns: "-".join(f"{name}-{getattr(values, 'dtype', 'list')}" for name, values in columns.items()),
)
def test_types_of_pandas_columns(columns):
    assert listed(load(frame.assign(**columns))) == [("a", 1, 0, None), ("b", 2, 86400, None)]


def test_ratings_may_be_missing_or_true_and_false():
    given = frame.assign(rating=pd.array([None, 4], "Int64"))
    assert np.isnan(load(given).ratings[0]) and load(given).ratings[1] == 4
    assert load(frame.assign(rating=[True, False])).ratings.tolist() == [1, 0]


def test_an_index_with_a_name_is_a_column():
    assert listed(load(frame.set_index("user"))) == listed(load(frame))
    assert listed(load(frame.set_index(["user", "item"]))) == listed(load(frame))
    assert load(frame.rename_axis("row")).unused == ("row",)
    assert load(frame.rename_axis("user")).unused == ()  # there is a column of that name


def test_columns_that_pandas_has_counted_are_in_order():
    data = load(pd.DataFrame([[1, 2, 3.5, 4], [5, 6, 2.5, 8]]))
    assert listed(data) == [(1, 2, 4, 3.5), (5, 6, 8, 2.5)]
    assert data.columns == {"user": "0", "item": "1", "rating": "2", "timestamp": "3"}
    data = load(pd.DataFrame([[1, 2], [5, 6]]), {"user": 1, "item": 0})
    assert listed(data) == [(2, 1, None, None), (6, 5, None, None)]


BAD = {
    "blank id": (frame.assign(user=["a", None]), "frame, row 2, column 'user': the id is blank"),
    "masked id": (frame.assign(item=pd.array([None, 1], "Int64")), "frame, row 1, column 'item': the id is blank"),
    "category": (frame.assign(user=pd.Categorical(["a", None])), "frame, row 2, column 'user': the id is blank"),
    "list": (frame.assign(item=[[1], [2]]), "frame, row 1, column 'item': List(Int64) is no id; use text or"),
    "blank time": (frame.assign(when=[1, None]), "frame, row 2, column 'when': the time is blank"),
    "bad time": (frame.assign(when=["1", "noon"]), "frame, row 2, column 'when': 'noon' is not a time; use"),
    "duration": (frame.assign(when=pd.to_timedelta([1, 2])), "is not a time; use a number or an ISO 8601 date"),
    "bad rating": (frame.assign(rating=["1", "good"]), "frame, row 2, column 'rating': 'good' is not a number"),
    "no rows": (frame[:0], "frame: has columns but no rows; add some"),
    "no columns": (pd.DataFrame(), "frame: has no columns; it needs user and item"),
    "levels": (pd.DataFrame({("a", "user"): [1], ("a", "item"): [2]}), "its column names have 2 levels; give each"),
    "twins": (
        pd.concat([frame, frame[["user"]]], axis=1),
        "frame: two columns are called 'user'; rename one, or give its position: columns={'user': '0'}",
    ),
    "unknown names": (
        pl.DataFrame({"who": [1], "what": [2]}),
        "frame: cannot tell the user and the item column among 'who', 'what'; "
        "name it, e.g. columns={'user': 'who', 'item': 'what'}",
    ),
    "no such file": (pl.scan_csv("none.csv"), "frame: a LazyFrame cannot be read as a table (No such file"),
    "a column": (pd.Series([1]), "frame: a Series cannot be read as a table"),
    "list of rows": ([(1, 2)], "cannot read interactions from a list; give a named set, a path, or a data frame"),
    "dict": ({"user": [1]}, "cannot read interactions from a dict; give"),
    "array": (np.zeros((2, 2)), "cannot read interactions from a ndarray; give"),
    "nothing": (None, "cannot read interactions from a NoneType; give"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_frames_get_one_line(case):
    source, expected = BAD[case]
    assert expected in refused(source)


odd = st.sampled_from(
    [
        1,
        2.5,
        "x",
        "",
        None,
        float("nan"),
        pd.NaT,
        pd.NA,
        decimal.Decimal("1.5"),
        dt.date(2020, 1, 1),
        dt.timedelta(1),
        pd.Timestamp("2020", tz="UTC"),
        True,
        b"ab",
        b"\xff",
        [1],
        {"a": 1},
        {1},
        2**70,
        1j,
        "train",
        np.array([1, 2]),
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["user", "item", "rating", "time", "split", "foo"]), st.lists(odd, max_size=3)))
def test_whatever_a_frame_holds_it_is_read_or_refused_in_one_line(columns):
    rows = min(map(len, columns.values()), default=0)
    made = pd.DataFrame({name: pd.Series(values[:rows], dtype=object) for name, values in columns.items()})
    for titles in (None, made):
        try:
            assert len(load(made, titles=titles)) > 0
        except UserError as error:
            assert "\n" not in str(error)


def test_a_column_may_be_chosen_among_twins():
    twins = pd.concat([frame, frame[["user"]].replace("a", "z")], axis=1)
    assert load(twins, {"user": "3"}).user_ids.tolist() == ["z", "b"]


def test_pandas_alone_is_enough(monkeypatch):
    plain = frame.assign(user=frame["user"].astype(object))
    masked = plain.assign(item=frame["item"].astype("Int64"), when=as_time.dt.tz_localize("UTC"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # importing it fails from here on
    assert listed(load(plain)) == listed(load(masked)) == [("a", 1, 0, None), ("b", 2, 86400, None)]


def test_only_columns_in_use_are_computed():
    query = (
        pl.DataFrame(ROWS).lazy().with_columns(pl.col("when").map_batches(_never, return_dtype=pl.Int64).alias("other"))
    )
    data = load(query, NAMED)
    assert len(data) == 4 and data.unused == ("other",)


def _never(column):
    raise AssertionError("nobody needs this column")


def test_what_is_a_frame():
    assert all(is_frame(make(ROWS)) for make in KINDS.values())
    assert not any(map(is_frame, ("text", [1], {}, None, np.zeros(3))))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "stream"])
def test_a_column_that_looks_like_a_time_is_named(kind):
    rows = {"user": [1, 2], "item": [3, 4], "plain": [5, 6], "moment": [1_500_000_000, 1_500_000_001]}
    data = load(KINDS[kind](rows))
    assert (data.maybe_time, data.unused) == ("moment", ("plain", "moment"))


@pytest.mark.parametrize("rows", [{"user": [1]}, {"foo": [1]}, {"user": [1], "stars": [2]}])
def test_a_frame_without_enough_columns_is_told_to_add_one(rows):
    assert refused(pl.DataFrame(rows)).endswith("; add it") and "{}" not in refused(pl.DataFrame(rows))
