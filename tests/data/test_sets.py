import gzip
import json
import os

import numpy as np
import polars as pl
import pytest

from federec.data import sets
from federec.data.describe import describe
from federec.data.split import leave_one_out
from federec.errors import UserError
from federec.runtimes.run import fingerprint

here = os.environ.get("FEDEREC_DATA")
needs_data = pytest.mark.skipif(not here, reason="FEDEREC_DATA names no folder with the published sets")
published = [name for name in sets.SETS if name != "tastes"]


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A machine without any set."""
    monkeypatch.delenv("FEDEREC_DATA", raising=False)
    monkeypatch.setenv("FEDEREC_CACHE", str(tmp_path / "cache"))
    return tmp_path


def refused(*arguments, **options):
    with pytest.raises(UserError) as caught:
        sets.load(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@needs_data
@pytest.mark.parametrize("name", published)
def test_published_counts(name):
    data, known = sets.load(name), sets.SETS[name]
    assert (data.source_rows, data.n_users, data.n_items) == (known.rows, known.users, known.items)
    assert data.name == name and len(data.sha256) == 64
    split = leave_one_out(data)
    assert len(split.train) + 2 * len(split.evaluated) == len(data)


@needs_data
def test_facts_of_the_published_sets():
    ties = {name: describe(sets.load(name))["users_with_tied_newest"] for name in ("ml-100k", "amazon-video")}
    assert ties == {"ml-100k": 415, "amazon-video": 2216}
    tags = sets.load("lastfm-2k")
    assert len(tags) == 70_508
    assert np.count_nonzero(np.bincount(tags.users) == 1) == 118
    assert sets.load("filmtrust").times is None and sets.load("filmtrust").merged == 3


@needs_data
def test_titles_and_filters_of_a_published_set():
    data = sets.load("ml-100k", min_interactions=100, k_core=5)
    assert np.bincount(data.users).min() >= 5 and np.bincount(data.items).min() >= 5 and len(data) < 100_000
    assert data.titles["1"] == "Toy Story (1995)"


def test_places(empty, monkeypatch):
    known = sets.SETS["ml-100k"]
    assert sets.find(known) is None
    cached, own = (empty / place / "ml-100k" / "ratings.csv.gz" for place in ("cache", "data"))
    for file in (cached, own):
        file.parent.mkdir(parents=True)
        file.touch()
    assert sets.find(known) == cached
    monkeypatch.setenv("FEDEREC_DATA", str(empty / "data"))
    assert sets.find(known) == own
    found = {entry.name: path for entry, path in sets.status()}
    assert found["ml-100k"] == own and found["tastes"] is None


def test_a_set_that_is_not_there(empty):
    assert refused("ml-1m") == "'ml-1m' is not on this machine; get it with: federec data get ml-1m"
    text = refused("filmtrust")
    assert "take ratings.txt of FilmTrust" in text
    assert str(empty / "cache" / "filmtrust" / "ratings.csv.gz") in text


def test_a_file_with_other_content(empty):
    file = empty / "cache" / "ml-100k" / "ratings.csv.gz"
    file.parent.mkdir(parents=True)
    file.write_bytes(gzip.compress(b"user,item\n1,2\n"))
    text = refused("ml-100k")
    assert str(file) in text
    assert "has 1 rows, 1 users, 1 items, but 'ml-100k' has 100,000 rows, 943 users, 1,682 items" in text


def test_damaged_titles(empty):
    file = empty / "ratings.csv"
    file.write_text("user,item\n1,2\n")
    (empty / "items.csv.gz").write_bytes(gzip.compress(b"id,name\n1,x\n"))
    with pytest.raises(UserError, match=r"items\.csv\.gz: is not a readable item,title,genres file"):
        sets.read(sets.NamedSet("x", "x", 1, 1, 1, "", "", ""), file)


def test_words(empty, monkeypatch):
    assert "no data set and no file is called 'ml100k' - did you mean 'ml-100k'?" in refused("ml100k")
    assert "no such file" in refused("./ml-100k.csv")
    assert "--columns is for files" in refused("ml-100k", columns={"user": "0"})
    with pytest.raises(UserError, match="did you mean 'filmtrust'"):
        sets.entry("filmtrst")


def test_a_file_of_ones_own(empty, monkeypatch):
    monkeypatch.chdir(empty)
    (empty / "mine.csv").write_text("a,b\n1,2\n1,3\n4,2\n")
    data = sets.load("mine.csv", columns={"user": "a", "item": "b"}, min_interactions=2)
    assert (data.name, len(data)) == ("mine.csv", 2)
    assert len(sets.load(empty / "mine.csv", columns={"user": "a", "item": "b"})) == 3


def test_the_built_in_set(empty):
    data, known = sets.load("tastes"), sets.SETS["tastes"]
    assert (data.source_rows, data.n_users, data.n_items) == (known.rows, known.users, known.items)
    smaller = sets.load("tastes", min_interactions=200)
    assert np.bincount(smaller.users).min() >= 200 and smaller.titles == data.titles


# --- held-out rows, titles, origins -----------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    made = {}
    for part, content in {"train": "1,10,5\n1,11,6\n2,10,7\n", "valid": "2,11,8\n", "test": "1,12,9\n3,10,9\n"}.items():
        made[part] = tmp_path / f"{part}.csv"
        made[part].write_text("user,item,time\n" + content)
    return made


def held_out(files):
    return {part: files[part] for part in ("test", "valid")}


def test_held_out_files(files):
    data = sets.load(files["train"], held_out=held_out(files))
    assert data.parts.tolist() == [0, 0, 0, 1, 2, 2]
    assert data.user_ids[data.users].tolist() == [1, 1, 2, 2, 1, 3]
    assert data.item_ids[data.items].tolist() == [10, 11, 10, 11, 12, 10]
    assert data.times.tolist() == [5, 6, 7, 8, 9, 9] and data.name == "train.csv"
    assert len(data.sha256) == 64 and data.sha256 != sets.load(files["train"]).sha256
    assert sets.load(files["train"], held_out={"test": files["test"]}).parts.tolist() == [0, 0, 0, 2, 2]


def test_held_out_frames_are_read_like_files(files):
    frames = {part: pl.read_csv(file) for part, file in files.items()}
    data = sets.load(frames["train"], held_out={"valid": frames["valid"], "test": files["test"]})
    assert fingerprint(data) == fingerprint(sets.load(files["train"], held_out=held_out(files)))
    assert data.origin["data"] == "<frame>"


def test_labels_that_are_text_in_one_file_only(files):
    files["test"].write_text("user,item,time\nx,10,5\n1,007,6\n")
    data = sets.load(files["train"], held_out={"test": files["test"]})
    assert data.user_ids.tolist() == ["1", "2", "x"] and data.item_ids.tolist() == ["10", "11", "007"]


def test_held_out_rows_that_do_not_fit(files):
    train, test = files["train"], files["test"]
    assert "unknown part 'tset' - did you mean 'test'?" in refused(train, held_out={"tset": test})
    assert "none.csv: no such file" in refused(train, held_out={"test": train.parent / "none.csv"})
    assert "held-out rows are for files and data frames of your own, not for 'tastes'" in refused(
        "tastes", held_out={"test": test}
    )
    train.write_text("user,item,split\n1,10,train\n")
    assert "both say what is held out; leave out one" in refused(train, held_out={"test": test})
    train.write_text("user,item\n1,10\n")
    assert "only 'train.csv' has no times; give all rows times, or none" in refused(train, held_out={"test": test})


def test_a_rating_that_only_one_file_has(files):
    files["test"].write_text("user,item,time,rating\n1,10,5,4\n")
    data = sets.load(files["train"], held_out={"test": files["test"]}, repeats="keep")
    assert np.isnan(data.ratings[:3]).all() and data.ratings[3] == 4


def test_the_origin_loads_the_same_data_again(files, monkeypatch):
    monkeypatch.chdir(files["train"].parent)
    titles = files["train"].parent / "titles.csv"
    titles.write_text("item,title\n10,Ten\n")
    options = {"min_interactions": 1, "repeats": "keep", "titles": "titles.csv", "held_out": {"test": "test.csv"}}
    data = sets.load("train.csv", **options)
    monkeypatch.chdir("/")
    origin = dict(data.origin)
    again = sets.load(origin.pop("data"), **origin)
    assert fingerprint(again) == fingerprint(data) and again.titles == data.titles == {"10": "Ten"}
    assert again.origin == data.origin and json.loads(json.dumps(data.origin)) == data.origin


def test_data_that_is_loaded_already():
    data = sets.load("tastes")
    assert sets.load(data) is data
    named = sets.load(data, titles={1: "One"}, name="mine")
    assert (named.titles["1"], named.name, named.origin) == ("One", "mine", data.origin)
    assert "'tastes' is loaded already; give columns, filters" in refused(data, k_core=2)
    assert "repeats: cannot be 'kept' - did you mean 'keep'?" in refused("tastes", repeats="kept")


def test_data_that_was_in_memory():
    assert "the data, 'my frame', was in memory" in refused("<my frame>")
    assert "the data, 'a/b', was in memory" in refused("<a/b>")
    assert "give it again: fr.Run.load(path, data=...) or fr.resume(path, data=...)" in refused("<frame>")


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_text_that_is_no_path(name):
    assert "no data set and no file is called" in refused(name)


@needs_data
def test_repeats_of_the_published_lastfm_file():
    data = sets.load("lastfm-2k-tags")
    assert (len(data), data.repeated, data.merged) == (185_650, 115_142, 0)
    assert data.origin["repeats"] == "keep"
    assert fingerprint(data) == fingerprint(sets.load("lastfm-2k", repeats="keep", name="lastfm-2k-tags"))
    assert len(sets.load("lastfm-2k-tags", repeats="merge")) == len(sets.load("lastfm-2k")) == 70_508
    split = leave_one_out(data, ties="file")
    test, ptr = split.test.first(split.evaluated), split.ptr
    known = [item in split.train[ptr[user] : ptr[user + 1]] for user, item in zip(split.evaluated, test, strict=True)]
    assert (len(known), sum(known)) == (1_600, 816)  # the share that docs/data.md and the results pages name


def test_a_set_says_what_it_does_with_repeats(empty, monkeypatch):
    known = sets.NamedSet("played", "played", 4, 1, 2, "", "", "", min_interactions=2, repeats="keep")
    monkeypatch.setitem(sets.SETS, "played", known)
    file = empty / "cache" / "played" / "ratings.csv.gz"
    file.parent.mkdir(parents=True)
    file.write_bytes(gzip.compress(b"user,item\n1,2\n1,2\n1,3\n1,2\n5,2\n"))
    kept, merged = sets.load("played"), sets.load("played", repeats="merge")
    assert (len(kept), kept.origin["repeats"]) == (4, "keep") and (len(merged), merged.origin["repeats"]) == (
        2,
        "merge",
    )
    assert len(sets.load("played", min_interactions=0)) == 5
    assert known.reading == "users with 2 rows or more, repeats kept" and sets.SETS["tastes"].reading == ""
    file.write_bytes(gzip.compress(b"user,item\n1,2\n1,2\n"))
    assert "has 2 rows, 1 users, 1 items, but 'played' has 4 rows" in refused("played")


def test_filters_of_the_built_in_set():
    data = sets.load("tastes", min_rating=4)
    assert data.ratings.min() == 4 and data.below == 100_000 - len(data) > 0
    assert data.columns["timestamp"] == "timestamp" and data.unused == ()
