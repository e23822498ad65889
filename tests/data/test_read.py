import csv
import gzip
import hashlib
import io
import math
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from federec.data import cells, table
from federec.data.columns import INTERACTIONS, TITLES, parse_columns, recognise
from federec.data.prepare import Filters
from federec.data.read import read_file
from federec.data.sets import load
from federec.errors import UserError


def read(tmp_path, content, **options):
    path = tmp_path / "log.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_file(path, **options)


def pairs(data):
    """Every interaction by its labels."""
    return [(data.user_ids[u], data.item_ids[i]) for u, i in zip(data.users.tolist(), data.items.tolist(), strict=True)]


def message(tmp_path, content, **options):
    with pytest.raises(UserError) as caught:
        read(tmp_path, content, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(tmp_path / "log.csv"))
    return text.removeprefix(str(tmp_path / "log.csv"))


# --- what can be read -------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [",", "\t", ";", "::", " "])
@pytest.mark.parametrize("header", [True, False])
def test_separators(tmp_path, separator, header):
    rows = [("user", "item", "rating", "timestamp")] * header + [
        ("1", "7", "3.5", "100"),
        ("2", "8", "4", "90"),
    ]
    data = read(tmp_path, "".join(separator.join(row) + "\n" for row in rows))
    assert pairs(data) == [(1, 7), (2, 8)]
    assert data.times.tolist() == [100, 90]
    assert data.ratings.tolist() == [3.5, 4]
    assert (data.name, data.source_rows, data.merged) == ("log.csv", 2, 0)


def test_text_is_cut_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "_BLOCK_CHARACTERS", 8)
    data = read(tmp_path, "user,item,rating\n1,10,4\n2,11,3.5\n3,012,\n1,13,5\n\n")
    assert pairs(data) == [(1, "10"), (2, "11"), (3, "012"), (1, "13")]
    assert data.ratings.tolist() == pytest.approx([4, 3.5, math.nan, 5], nan_ok=True)
    assert message(tmp_path, "user,item\n1,10\n2,11\n3\n").startswith(", line 4: too few fields")


identifiers = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8),
    st.sampled_from(["007", "-0", '5" disc', "a,b", "a;b", "a::b", "a\nb", "two  words", "ж", "東京", "\u2028"]),
).filter(lambda label: label.strip(" ") == label and label not in ("nan", "NaN", "NAN", "null", "NULL", "<NA>"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(identifiers, identifiers, st.integers(0, 5)), min_size=1, max_size=12),
    header=st.booleans(),
    separator=st.sampled_from([",", "\t", ";", "::"]),
    packed=st.booleans(),
    bom=st.booleans(),
    crlf=st.booleans(),
    trailing=st.integers(0, 2),
)
def test_round_trip(tmp_path, rows, header, separator, packed, bom, crlf, trailing):
    if separator == "::":
        assume(not any(set(f"{user}{item}") & set(':"\n') for user, item, _ in rows))
    names = [("user", "item", "timestamp")]
    order = {} if header else {"user": "0", "item": "1", "timestamp": "2"}
    if not header:
        assume(not {"user", "item"} <= recognise(rows[0][:2]).keys())
    out = io.StringIO()
    if separator == "::":
        out.writelines("::".join(map(str, row)) + "\n" for row in names * header + rows)
    else:
        csv.writer(out, delimiter=separator, lineterminator="\n").writerows(names * header + rows)
    text = out.getvalue() + "\n" * trailing
    if separator != "," and not header:
        assume(not any(other in text for other in ("\t", "::", ",", ";") if other != separator))
    if separator == "," and not header:
        assume("\t" not in text and "::" not in text)
    raw = (b"\xef\xbb\xbf" if bom else b"") + text.replace("\n", "\r\n" if crlf else "\n").encode()
    raw = gzip.compress(raw) if packed else raw
    data = read(tmp_path, raw, columns=order)

    newest = {}
    for user, item, time in rows:
        newest[user, item] = max(time, newest.get((user, item), -1))
    found = {(str(user), str(item)): time for (user, item), time in zip(pairs(data), data.times, strict=True)}
    assert found == newest
    assert data.source_rows == len(rows)
    assert [str(u) for u in data.user_ids] == list(dict.fromkeys(user for user, _, _ in rows))
    assert [str(i) for i in data.item_ids] == list(dict.fromkeys(item for _, item, _ in rows))
    whole = all(str(number) == user for user, *_ in rows for number in [_whole(user)])
    assert data.user_ids.dtype == (np.int64 if whole else object)
    assert data.sha256 == hashlib.sha256(raw).hexdigest()


def _whole(label):
    try:
        return int(label)
    except ValueError:
        return None


@pytest.mark.parametrize(
    "header",
    [
        "userId,movieId,rating,timestamp",
        "User ID,Item_ID,Stars,Time",
        "uid,iid,score,ts",
        "userID,artistID,weight,date",
        "U,I,plays,unixTime",
        "reviewerID,asin,overall,unixReviewTime",
        "user_id:token,item_id:token,rating:float,timestamp:float",
        "user_id,parent_asin,rating,timestamp",  # Amazon 2023
        "user_id,business_id,stars,date",  # Yelp
        "user_id,book_id,rating,date_added",  # Goodreads
        "username,product_id,hours,date",  # Steam
        "cust_id,movie_id,rating,date",  # Netflix
        "visitorid,itemid,weight,timestamp",  # Retailrocket
        "User-ID,ISBN,Book-Rating,created_at",  # Book-Crossing
        "review_profilename,beer_beerid,review_overall,review_time",  # BeerAdvocate
        "user_name,recording_msid,plays,listened_at",  # ListenBrainz
        "user_id,video_id,watch_ratio,timestamp",  # KuaiRec
        "CustomerID,StockCode,count,InvoiceDate",
        "customer_id,article_id,score,t_dat",  # H&M
        "buyer,sku,grade,purchase_date",
        "user,item,rating,when",
        "user,item,rating,event_time",
        "user,item,rating,order_date",
        "user,item,rating,played_at",
        "user,item,rating,reviewTime",
        "user,item,rating,rated_at",
        "user,item,rating,timestamp_ms",
    ],
)
def test_common_names(tmp_path, header):
    data = read(tmp_path, f"{header}\n5,6,1,2\n")
    assert pairs(data) == [(5, 6)] and data.times.tolist() == [2] and data.ratings.tolist() == [1]


@pytest.mark.parametrize("kind", [INTERACTIONS, TITLES])
def test_a_name_is_of_one_role(kind):
    names = [name for known in kind.names.values() for name in known]
    assert len(names) == len(set(names))
    assert all(name.isalnum() and name == name.lower() for name in names)


def test_of_several_names_the_plainest_counts(tmp_path):
    data = read(tmp_path, "date,time,timestamp,asin,parent_asin,user_name,user_id\n1,2,3,4,5,6,7\n")
    assert data.columns == {"user": "user_id", "item": "parent_asin", "timestamp": "timestamp"}
    assert data.unused == ("date", "time", "asin", "user_name")


def test_every_column_is_accounted_for(tmp_path):
    data = read(tmp_path, "user,item,text,rating,date\n1,2,good,,2020-01-01\n")
    assert data.columns == {"user": "user", "item": "item", "timestamp": "date"}
    assert data.unused == ("text", "rating")  # the rating is blank everywhere
    data = read(tmp_path, "1,2,3,4,5\n")
    assert data.columns == {"user": "0", "item": "1", "rating": "2", "timestamp": "3"} and data.unused == ("4",)


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        (["1300000000", "1300000001"], "foo"),
        (["1300000000000", ""], "foo"),
        (["2011-01-01", "2012-01-01"], "foo"),
        (["2011-01-01", "soon"], ""),
        (["1", "2"], ""),
        (["", ""], ""),
    ],
)
def test_an_unused_column_may_look_like_times(tmp_path, cells, found):
    rows = "".join(f"1,{item},{cell}\n" for item, cell in enumerate(cells))
    assert read(tmp_path, f"user,item,foo\n{rows}").maybe_time == found
    assert read(tmp_path, f"user,item,foo,time\n{rows.replace(chr(10), ',5' + chr(10))}").maybe_time == ""


def test_columns_by_name_leave_the_rest_to_common_names(tmp_path):
    data = read(tmp_path, "when,mid,uid,time\nx,1,2,3\n", columns={"user": "uid", "item": "mid"})
    assert pairs(data) == [(2, 1)] and data.times.tolist() == [3] and data.ratings is None


def test_columns_by_position(tmp_path):
    where = {"user": "1", "item": "0", "timestamp": "3"}
    data = read(tmp_path, "10,20,x,30\n11,21,y,31\n", columns=where)
    assert pairs(data) == [(20, 10), (21, 11)] and data.times.tolist() == [30, 31] and data.ratings is None
    assert len(read(tmp_path, "a,b,c,d\n10,20,x,30\n11,21,y,31\n", columns=where)) == 2  # passes over the header


def test_headerless_with_two_columns_and_any_words(tmp_path):
    data = read(tmp_path, "ann,tea\nbob,milk")
    assert pairs(data) == [("ann", "tea"), ("bob", "milk")] and data.times is None and data.ratings is None


def test_recbole_files_have_no_quotes(tmp_path):
    data = read(tmp_path, 'user_id:token\titem_id:token\n1\t"Crocodile" Dundee\n2\t5" disc\n')
    assert pairs(data) == [(1, '"Crocodile" Dundee'), (2, '5" disc')]


@pytest.mark.parametrize(
    "content", ["user,item\n1,2\n\n3,4\n", '\n\nuser,item\n1,2\n\n"3",4\n\n', "user,item\r1,2\r3,4"]
)
def test_blank_lines_and_old_line_ends(tmp_path, content):
    assert pairs(read(tmp_path, content)) == [(1, 2), (3, 4)]


def test_blanks_around_fields_do_not_count(tmp_path):
    data = read(tmp_path, "user, item, rating, timestamp\n1, 2, 3, 4\n 1 , 3, , 2024-01-01\n")
    assert pairs(data) == [(1, 2), (1, 3)] and data.times.tolist() == [4, 1704067200]


def test_times_in_iso_8601(tmp_path):
    given = [
        "1970-01-02",
        "1970-01-02T00:00:01",
        "1970-01-02 00:00:02.5",
        "1970-01-02T01:00:00+01:00",
        "1970-01-01Z",
    ]
    assert cells.seconds("1970-01-02T00:00:00Z") == 86400
    data = read(tmp_path, "user,item,date\n" + "".join(f"1,{i},{time}\n" for i, time in enumerate(given[:4])))
    assert data.times.tolist() == [86400, 86401, 86402.5, 86400]
    assert cells.seconds(given[4]) is None


@pytest.mark.parametrize(
    "text",
    [
        "05 31, 2018",
        "May 31, 2018",
        "31 May 2018",
        "31-May-2018",
        "31 May 2018, 00:00",
        "2018/05/31",
        "2018/05/31 00:00:00",
        "2018-05-31 00:00:00 UTC",
        "Thu, 31 May 2018 00:00:00 GMT",
        "Wed May 30 17:00:00 -0700 2018",
    ],
)
def test_times_in_other_forms(tmp_path, text):
    assert read(tmp_path, f'user,item,date\n1,2,"{text}"\n').times.tolist() == [1527724800]


@pytest.mark.parametrize("text", ["31/05/2018 12:00", "05/06/2018", "5.6.18", "05-06-2018"])
def test_a_date_that_can_be_misunderstood_is_refused(tmp_path, text):
    said = message(tmp_path, f"user,item,date\n1,2,{text}\n")
    assert said == f", line 2, column 'date': '{text}' may begin with the day or with the month; write it as 2024-05-31"


@settings(max_examples=100, deadline=None)
@given(st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)), st.sampled_from(cells._FORMS))
def test_a_form_gives_the_day_it_was_written_for(moment, form):
    moment = moment.replace(tzinfo=UTC)
    assert abs(cells.seconds(moment.strftime(form)) - moment.timestamp()) < 86400


def test_blank_ratings_and_no_times_at_all(tmp_path):
    data = read(tmp_path, "user,item,rating,timestamp\n1,2,,\n1,3,2.5,\n")
    assert data.times is None
    assert math.isnan(data.ratings[0]) and data.ratings[1] == 2.5
    assert read(tmp_path, 'user,item,rating\n"1",2,\n1,3,\n').ratings is None


def test_parquet(tmp_path):
    path = tmp_path / "log.parquet"
    pl.DataFrame(
        {
            "userId": pl.Series([3, 3, 1], dtype=pl.UInt32),
            "movie": pl.Series(["b", "a", "b"], dtype=pl.Categorical),
            "rating": pl.Series([1, None, 2], dtype=pl.Int8),
            "time": pl.Series([0, 1_500, 2_000]).cast(pl.Datetime("ms")),
        }
    ).write_parquet(path)
    data = read_file(path)
    assert pairs(data) == [(3, "b"), (3, "a"), (1, "b")]
    assert data.times.tolist() == [0, 1.5, 2]
    assert data.ratings.tolist()[::2] == [1, 2] and math.isnan(data.ratings[1])
    assert data.user_ids.dtype == np.int64


@pytest.mark.parametrize(
    ("users", "expected"),
    [
        (pl.Series([1.0, 2.0]), [1, 2]),
        (pl.Series([1.5, 2.0]), ["1.5", "2.0"]),
        (pl.Series([2**64 - 1, 1], dtype=pl.UInt64), [str(2**64 - 1), "1"]),
        (pl.Series(["007", "7"]), ["007", "7"]),
        (pl.Series(["8", "7"]), [8, 7]),
    ],
)
def test_parquet_ids(tmp_path, users, expected):
    path = tmp_path / "log.parquet"
    pl.DataFrame({"user": users, "item": [1, 2], "date": ["2024-01-01", "2024-01-02"]}).write_parquet(path)
    data = read_file(path)
    assert data.user_ids.tolist() == expected and data.times[1] - data.times[0] == 86400


def test_filters(tmp_path):
    content = "1,1\n1,1\n1,2\n2,1\n2,2\n3,3\n"
    assert len(read(tmp_path, content, filters=Filters(min_interactions=3))) == 2
    assert read(tmp_path, content, filters=Filters(min_interactions=3)).merged == 1
    assert len(read(tmp_path, content, filters=Filters(k_core=2))) == 4
    assert "no user of 'log.csv' has 4 rows" in _refused(tmp_path, content, filters=Filters(min_interactions=4))
    assert "lower --k-core" in _refused(tmp_path, content, filters=Filters(k_core=3))


def test_a_column_says_what_is_held_out(tmp_path):
    content = "user,item,split\n1,1,train\n1,2,Valid\n1,3, test\n2,1,validation\n2,2,DEV\n2,3,val\n"
    data = read(tmp_path, content)
    assert data.parts.tolist() == [0, 1, 2, 1, 1, 1] and data.parts.dtype == np.int8
    assert data.columns["split"] == "split"
    assert read(tmp_path, content.replace("split", "fold")).parts is None
    assert read(tmp_path, content.replace("split", "fold"), columns={"split": "fold"}).parts is not None
    said = message(tmp_path, "user,item,split\n1,1,train\n1,2,3\n")
    assert said.startswith(", line 3, column 'split': '3' is no part of a split; write train, valid or test")


def _refused(tmp_path, content, **options):
    with pytest.raises(UserError) as caught:
        read(tmp_path, content, **options)
    return str(caught.value)


# --- what cannot be read: the place, the problem, the remedy -----------------------------------------------

BAD = {
    "empty": ("", {}, ": the file is empty; write one"),
    "only blank lines": ("\n\n", {}, ": the file is empty; write one"),
    "header only": ("user,item\n", {}, ": has a header but no rows; add some"),
    "one column": (
        "user|item\n1|2\n",
        {},
        ", line 1: only one column found; separate user and item by tab, '::', comma",
    ),
    "unknown header": (
        "who,what\n1,2\n",
        {},
        ", line 1: cannot tell the user and the item column among 'who', 'what'",
    ),
    "unknown header, the remedy": ("who,what\n1,2\n", {}, "--columns user=who,item=what"),
    "half known header": (
        "user,what\nx,y\n",
        {},
        "column among 'user', 'what'; name it, e.g. --columns item=what",
    ),
    "missing column": (
        "who,what\n1,2\n",
        {"user": "wh"},
        ", line 1: no column 'wh' for the user; found 'who', 'what'",
    ),
    "missing position": (
        "1,2\n",
        {"user": "0", "item": "2"},
        "give a name from there or a position from 0 to 1",
    ),
    "no user named": (
        "1,2\n3,4\n",
        {"item": "1"},
        ", line 1: --columns gives no user, and there is no header; add its",
    ),
    "twins": (
        "user,user,item\n1,2,3\n",
        {},
        ", line 1: two columns are called 'user'; rename one, or give its position: --columns user=0",
    ),
    "twice the same": ("1,2\n", {"user": "0", "item": "0"}, "--columns names the same column twice"),
    "too few fields": (
        "user,item,rating\n1,2,3\n\n4,5\n",
        {},
        ", line 4: too few fields, 2 instead of the 3 of line 1",
    ),
    "too few, quoted": ('user,item,rating\n"1\n",2,3\n4,5\n', {}, ", line 4: too few fields"),
    "too many fields": (
        "1,2\n3,4,5\n",
        {},
        ", line 2: too many fields, 3 instead of the 2 of line 1: '3', '4', '5'",
    ),
    "too many, the remedy": ("1::2\n3::4::5\n", {}, "(separated by '::'); shorten the line"),
    "blank user": (
        "user,item\n1,2\n,3\n",
        {},
        ", line 3, column 'user': the id is blank; fill it in or delete the row",
    ),
    "blank item": ('1,2\n3,""\n', {}, ", line 2, column 1 (item): the id is blank"),
    "nan item": ("uid,iid\n1,2\n\n3,NaN\n", {}, ", line 4, column 'iid': 'NaN' is no id"),
    "bad time": (
        "user,item,ts\n1,2,3\n1,4,noon\n",
        {},
        ", line 3, column 'ts': 'noon' is not a time; use a number or",
    ),
    "infinite time": ("user,item,ts\n1,2,3\n1,4,inf\n", {}, ", line 3, column 'ts': 'inf' is not a time"),
    "some blank times": (
        "1,2,3,4\n1,3,3,\n",
        {},
        ", line 2, column 3 (timestamp): the time is blank; give every row",
    ),
    "bad rating": (
        "user,item,stars\n1,2,3\n1,4,good\n",
        {},
        ", line 3, column 'stars': 'good' is not a number; write",
    ),
    "bad rating, quoted": ('user,item,stars\n"1\n",2,3\n1,4,good\n', {}, ", line 4, column 'stars': 'good'"),
    "not UTF-8": (b"user,item\n1,2\n1,caf\xe9\n", {}, ", line 3: not UTF-8 text; save the file as UTF-8"),
    "UTF-16": ("user,item\n1,2\n".encode("utf-16"), {}, ", line 1: not UTF-8 text"),
    "UTF-16 without a mark": ("user,item\n1,2\n".encode("utf-16-le"), {}, ", line 1: not UTF-8 text"),
    "tripled quote": ('user,item\n1,"""\n2,3\n', {}, ", line 2: a field's double quotes do not match"),
    "extra separator at the end": (
        'user,item\n1,"2"\n3,4,\n',
        {},
        ", line 3: too many fields, 3 instead of the 2",
    ),
    "open quote": ('user,item\n1,2\n1,"3\n4,5\n', {}, ", line 3: a field's double quotes do not match"),
    "stray quote": ('user,item\n1,"2"x\n', {}, ", line 2: a field's double quotes do not match"),
    "cut gzip": (
        gzip.compress(b"user,item\n1,2\n")[:-9],
        {},
        ": the gzip file is damaged or cut short; copy or",
    ),
    "false gzip": (b"\x1f\x8bnothing", {}, ": the gzip file is damaged"),
    "bad parquet": (b"PAR1 nothing PAR1", {}, ": the Parquet file is damaged; copy or write it again"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_content(tmp_path, case):
    content, columns, expected = BAD[case]
    text = message(tmp_path, content, columns=columns)
    assert expected in text
    if expected.startswith((",", ":")):
        assert text.startswith(expected)


def test_bad_places(tmp_path):
    with pytest.raises(UserError, match=r"none\.csv: no such file; check the path"):
        read_file(tmp_path / "none.csv")
    with pytest.raises(UserError, match="is a folder; name the file in it"):
        read_file(tmp_path)


def test_permission_denied(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
    with pytest.raises(UserError, match=r"a\.csv: permission denied; make the file readable"):
        read_file(tmp_path / "a.csv")


def test_bad_parquet_cells_name_the_row(tmp_path):
    path = tmp_path / "log.parquet"
    pl.DataFrame({"user": [1, None], "item": [1, 2]}).write_parquet(path)
    with pytest.raises(UserError, match="row 2, column 'user': the id is blank"):
        read_file(path)
    pl.DataFrame({"user": [1], "thing": [1]}).write_parquet(path)
    with pytest.raises(UserError, match="cannot tell the item column among 'user', 'thing'"):
        read_file(path)
    pl.DataFrame({"user": [1], "item": [1]}).clear().write_parquet(path)
    with pytest.raises(UserError, match="has columns but no rows"):
        read_file(path)


# --- the user's word for columns --------------------------------------------------------------------------


def test_parse_columns():
    assert parse_columns("user=uid, item=mid,timestamp=3") == {"user": "uid", "item": "mid", "timestamp": "3"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("usr=uid", "unknown role 'usr' - did you mean 'user'?"),
        ("time=t", "did you mean 'timestamp'?"),
        ("user", "'user' is not ROLE=COLUMN"),
        ("", "is not ROLE=COLUMN; write e.g. user=uid,item=mid"),
        ("user=a,user=b", "'user' is given twice"),
    ],
)
def test_parse_columns_refuses(text, expected):
    with pytest.raises(UserError) as caught:
        parse_columns(text)
    assert expected in str(caught.value)


def test_unknown_role_in_columns(tmp_path):
    assert "unknown role 'usr' - did you mean 'user'?" in _refused(tmp_path, "1,2\n", columns={"usr": "0"})


pieces = st.sampled_from(
    [
        "user",
        "item",
        "time",
        "1",
        "2.5",
        "nan",
        "é",
        '"',
        ",",
        "\t",
        "::",
        ";",
        " ",
        "\n",
        "\r",
        "\r\n",
        "\0",
        "2024-01-01",
    ]
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.lists(pieces, max_size=30).map(lambda parts: "".join(parts).encode()), st.binary(max_size=60)))
def test_whatever_the_file_holds_it_is_read_or_refused_in_one_line(tmp_path, raw):
    try:
        assert len(read(tmp_path, raw)) > 0
    except UserError as error:
        assert "\n" not in str(error) and str(error).startswith(str(tmp_path))


def test_unused_columns_of_held_out_files_are_said(tmp_path):
    for name, header in (("train", "user,item,a"), ("valid", "user,item,b"), ("test", "user,item,c")):
        (tmp_path / name).write_text(f"{header}\nu,{name},1\n")
    held_out = {"valid": tmp_path / "valid", "test": tmp_path / "test"}
    assert load(tmp_path / "train", held_out=held_out).unused == ("a", "b", "c")


@pytest.mark.parametrize("text", ['{"user": 1, "item": 2}\n{"user": 1, "item": 3}\n', '[\n {"user": 1, "item": 2}\n]'])
def test_json_is_refused_as_json(tmp_path, text):
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(UserError, match="JSON and JSON lines are not read; convert the file to CSV or Parquet"):
        load(tmp_path / "rows.jsonl")
