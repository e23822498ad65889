import gzip
import os

import numpy as np
import pytest

from federec.data import sets
from federec.data.describe import describe
from federec.data.split import leave_one_out
from federec.errors import UserError

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


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDEREC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert sets.cache() == tmp_path / "federec"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sets.cache() == tmp_path / ".cache" / "federec"


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
