import gzip

import polars as pl
import pytest

from federec.data.sets import load
from federec.data.titles import read_titles
from federec.errors import UserError

FRAME = pl.DataFrame({"user": [1, 1, 2], "item": [10, 11, 10]})


def refused(titles):
    with pytest.raises(UserError) as caught:
        load(FRAME, titles=titles)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "item,title\n10,Ten\n12,Twelve\n",
        "movieId;genres;title\n10;x;Ten\n12;y;Twelve\n",
        'id\tname\n10\t"Ten"\n12\tTwelve\n',
        "item_id:token\tmovie_title:token_seq\n10\tTen\n12\tTwelve\n",
        "10::Ten::Drama|War\n12::Twelve::Comedy\n",
        "10|Ten|01-Jan-1995||0|1\n12|Twelve|01-Jan-1995||1|0\n",
        "10,Ten\n12,Twelve\n",
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_files(tmp_path, content, packed):
    file = tmp_path / "titles"
    file.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    assert read_titles(file)[0] == {"10": "Ten", "12": "Twelve"}
    assert load(FRAME, titles=str(file)).titles == {"10": "Ten"}


def test_titles_of_movielens_are_latin_1(tmp_path):
    (tmp_path / "movies.dat").write_bytes("10::Café (1999)::Drama\n".encode("latin-1"))
    assert load(FRAME, titles=tmp_path / "movies.dat").titles == {"10": "Café (1999)"}


def test_parquet_frames_and_mappings(tmp_path):
    frame = pl.DataFrame({"product_id": [10.0, 11.0], "name": ["Ten", None]})
    frame.write_parquet(tmp_path / "titles.parquet")
    for titles in (tmp_path / "titles.parquet", frame, {10: "Ten", 99: "No"}, {"10": "Ten"}):
        assert load(FRAME, titles=titles).titles == {"10": "Ten"}


def test_they_are_added_to_those_of_a_set():
    data = load("tastes", titles={1: "One"})
    assert data.titles["1"] == "One" and data.titles["2"] == load("tastes").titles["2"]


def test_wrong_titles_get_one_line(tmp_path):
    file = tmp_path / "titles.csv"
    assert "none.csv: no such file" in refused(tmp_path / "none.csv")
    file.write_text("id,text\n10,x\n")
    assert refused(file).endswith("line 1: cannot tell the title column among 'id', 'text'; call it title")
    file.write_text("item,title\n")
    assert refused(file).endswith("has a header but no rows; add some")
    file.write_text("")
    assert "the file is empty; write one item per line, e.g. item,title" in refused(file)
    file.write_text("item,title\n10,x\n,y\n")
    assert "titles.csv, line 3, column 'item': the id is blank" in refused(file)
    file.write_text("10\n11\n")
    assert "only one column found; separate item and title by tab" in refused(file)
    assert "has no title for any item of 'frame' (its items are like 7, the data's like 10, 11)" in refused({7: "x"})
    assert "titles: a int cannot be read; give a file, a data frame" in refused(5)


def test_whole_numbers_as_floats_are_the_same_items():
    data = load(pl.DataFrame({"user": [1, 1], "item": [1, 2]}), titles={1.0: "One"})
    assert data.titles == {"1": "One"}
