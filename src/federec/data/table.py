"""From a file's bytes to its columns: compression, encoding, separator, header, quotes.

Polars cuts plain text into strings, block by block, so that it needs little memory. Where there are quotes, or a record
does not fit, Python's own `csv` reads the records. It is slower, but only `csv` knows what a quote means and on which
line a record starts.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from federec.data import cells
from federec.data.columns import INTERACTIONS, TITLES, Kind, choose, is_position, listing, recognise, shown, unnamed
from federec.errors import UserError

if TYPE_CHECKING:
    import polars as pl

SEPARATORS = {"\t": "tab", "::": "'::'", ",": "comma", ";": "semicolon", " ": "space"}
_BARS = {**SEPARATORS, "|": "bar"}  # MovieLens 100K has its titles in such a file
_UNQUOTED = ("::", "|")  # separators of files without quoted fields: a quote mark there is part of a title
_SAMPLE_CHARACTERS, SAMPLE_RECORDS = 1 << 16, 20
_BLOCK_CHARACTERS = 1 << 18  # processed at a time


@dataclass(frozen=True)
class Table:
    """The columns in use, by role, and how to name one of their cells to the user."""

    names: dict[str, str]
    """Role -> the column's name; its position where there is no header."""
    column: Callable[[str], pl.Series]
    """Role -> the column's cells."""
    where: Callable[[int], str]
    """Row (from 0) -> `file, line 7`."""
    has_header: bool
    unused: tuple[str, ...]
    """Names of the columns without a role."""
    maybe_time: str
    """One of them that looks like times, where no column is the time."""

    def cell(self, row: int, role: str) -> str:
        """`file, line 7, column 'when'`."""
        name = shown(self.names[role]) if self.has_header else f"{self.names[role]} ({role})"
        return f"{self.where(row)}, column {name}"


def tabled(
    names: Sequence[str],
    chosen: Mapping[str, int],
    has_header: bool,
    column: Callable[[int], pl.Series],
    sample: Callable[[int], Sequence[object]],
    where: Callable[[int], str],
) -> Table:
    """The table of the chosen columns. `column` and `sample` give all cells and the first few of a position."""
    named = [name.strip() if has_header else str(position) for position, name in enumerate(names)]
    free = [position for position in range(len(names)) if position not in chosen.values()]
    likely = (named[i] for i in free if "timestamp" not in chosen and cells.looks_like_times(sample(i)))
    return Table(
        {role: named[position] for role, position in chosen.items()},
        lambda role: column(chosen[role]),
        where,
        has_header,
        tuple(named[position] for position in free),
        next(likely, ""),
    )


class _BadQuotes(Exception):
    """A record whose double quotes do not match, and the line on which it starts."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


@dataclass(frozen=True)
class _Layout:
    """How a text file is cut into fields."""

    separator: str
    quoted: bool
    """Whether double quotes may enclose fields; a file without any quote mark is simply cut at the separators."""
    sample: list[list[str]]
    """The fields of the first records."""

    @property
    def width(self) -> int:
        return len(self.sample[0])


def unpack(raw: bytes, path: str) -> bytes:
    """The content of a gzip file, recognised by its first bytes and not by its name; anything else unchanged."""
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, OSError, zlib.error):
        raise UserError(f"{path}: the gzip file is damaged or cut short; copy or download it again") from None


def read_table(raw: bytes, path: str, columns: Mapping[str, str], kind: Kind = INTERACTIONS) -> Table:
    """The columns of an unpacked Parquet or text file."""
    read = _parquet if raw.startswith(b"PAR1") else _text
    return read(raw, path, columns, kind)


def _parquet(raw: bytes, path: str, columns: Mapping[str, str], kind: Kind) -> Table:
    import polars as pl

    try:
        frame = pl.read_parquet(io.BytesIO(raw))
    except Exception:  # Polars has no one error for a damaged file
        raise UserError(f"{path}: the Parquet file is damaged; copy or write it again") from None
    return frame_table(frame, path, columns, kind)


def frame_table(frame: pl.DataFrame, name: str, columns: Mapping[str, str], kind: Kind = INTERACTIONS) -> Table:
    """The columns of a Polars frame."""
    chosen = choose(frame.columns, True, columns, name, kind)
    if not frame.height:
        raise UserError(f"{name}: has columns but no rows; add some")

    def sample(position: int) -> Sequence[object]:
        return frame.to_series(position).head(SAMPLE_RECORDS).to_list()

    return tabled(frame.columns, chosen, True, frame.to_series, sample, lambda row: f"{name}, row {row + 1}")


def _text(raw: bytes, path: str, columns: Mapping[str, str], kind: Kind) -> Table:
    text = _decode(raw, path, kind)
    if not text.strip():
        raise UserError(f"{path}: the file is empty; write {kind.line}")
    if re.match(r"\s*\[?\s*\{\s*\"", text):
        raise UserError(f"{path}: JSON and JSON lines are not read; convert the file to CSV or Parquet")
    layout = _sniff(text, path, columns, kind)
    has_header = _has_header(layout.sample, path, columns, kind)
    names = layout.sample[0]
    chosen = choose(names, has_header, columns, f"{path}, line 1", kind)
    frame = _frame(text, layout, has_header, path)
    if not frame.height:
        raise UserError(f"{path}: has a header but no rows; add some")

    def where(row: int) -> str:
        records = _records(text, layout.separator, layout.quoted)
        return f"{path}, line {next(islice(records, row + has_header, None))[0]}"

    def sample(position: int) -> Sequence[object]:
        return [fields[position] for fields in layout.sample[int(has_header) :] if position < len(fields)]

    return tabled(names, chosen, has_header, frame.to_series, sample, where)


def _decode(raw: bytes, path: str, kind: Kind) -> str:
    """UTF-8 text with `\\n` between lines. Titles may also be Latin-1, as in MovieLens."""
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in raw:
        raw = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    bad = raw.find(b"\0")  # a zero byte is valid UTF-8, but not text
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        text = raw.decode("latin-1")
        bad = bad if kind is TITLES else error.start
    if bad >= 0:
        line = raw.count(b"\n", 0, bad) + 1
        raise UserError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8")
    return text.rstrip("\n")


def _sniff(text: str, path: str, columns: Mapping[str, str], kind: Kind) -> _Layout:
    """The separator: one with which the header is recognised, else one that gives the first lines equal lengths."""
    head = text[:_SAMPLE_CHARACTERS]
    if len(head) < len(text):
        head = head[: head.rfind("\n") + 1] or head
    # RecBole's files have no quoted fields either.
    quotes = '"' in text and ":token" not in head.partition("\n")[0]
    layouts = []
    separators = _BARS if kind is TITLES else SEPARATORS
    for separator in separators:
        quoted = quotes and separator not in _UNQUOTED
        records = _records(head, separator, quoted, strict=False)
        sample = [fields for _, fields in islice(records, SAMPLE_RECORDS)]
        if sample and len(sample[0]) > 1:
            layouts.append(_Layout(separator, quoted, sample))
    if not layouts:
        *most, last = separators.values()
        both = " and ".join(kind.needed)
        raise UserError(f"{path}, line 1: only one column found; separate {both} by {', '.join(most)} or {last}")
    named = [layout for layout in layouts if _names_columns(layout.sample[0], columns, kind)]
    even = [layout for layout in layouts if len({len(fields) for fields in layout.sample}) == 1]
    return [*named, *even, *layouts][0]


def _names_columns(first: list[str], columns: Mapping[str, str], kind: Kind) -> bool:
    """Whether the first record names the user's columns, or all needed ones by common names."""
    theirs = [column for column in columns.values() if not is_position(column)]
    return any(column in (name.strip() for name in first) for column in theirs) or _is_known(first, kind)


def _is_known(first: list[str], kind: Kind) -> bool:
    return recognise(first, kind).keys() >= set(kind.needed)


def _has_header(sample: list[list[str]], path: str, columns: Mapping[str, str], kind: Kind) -> bool:
    first, rest = sample[0], sample[1:]
    if _is_known(first, kind) or any(not is_position(column) for column in columns.values()):
        return True
    valued = [all(map(_is_value, column)) for column in zip(*rest, strict=False)]
    likely = any(valued) and not any(map(_is_value, first))  # words above a column of numbers or dates
    known = recognise(first, kind).keys()
    if not columns and (likely or known & set(kind.needed)):
        raise UserError(unnamed(first, [r for r in kind.needed if r not in known], f"{path}, line 1", kind))
    return likely


def _is_value(field: str) -> bool:
    return cells.seconds(field.strip()) is not None


def _records(text: str, separator: str, quoted: bool, strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    """(line on which it starts, from 1; fields) of every record; blank lines are skipped."""
    lines = io.StringIO(text, newline="\n")
    if not quoted:
        for number, line in enumerate(lines, 1):
            if line != "\n":
                yield number, line.removesuffix("\n").split(separator)
        return
    reader = csv.reader(lines, delimiter=separator, strict=strict)
    start = 1
    try:
        for fields in reader:
            if fields:
                yield start, fields
            start = reader.line_num + 1
    except csv.Error:
        if strict:
            raise _BadQuotes(start) from None


def _frame(text: str, layout: _Layout, has_header: bool, path: str) -> pl.DataFrame:
    """All fields of the rows below the header; stops at the first record that does not fit."""
    body = text.strip("\n")
    if not layout.quoted and "\n\n" not in body:
        start = (body.find("\n") + 1 or len(body)) if has_header else 0
        frame = _cut(body, start, layout.separator, "\n", layout.width)
        if frame is not None:
            return frame
    # Quotes, blank lines or a fault: `csv` cuts the records, and unused characters mark the cuts.
    field_end, record_end = _unused(text, 2)
    rewritten = io.StringIO()
    records = _records(text, layout.separator, layout.quoted)
    try:
        for line, fields in islice(records, int(has_header), None):
            if len(fields) != layout.width:
                raise UserError(_uneven(f"{path}, line {line}", fields, layout))
            rewritten.write(field_end.join(fields) + record_end)
    except _BadQuotes as bad:
        raise UserError(
            f"{path}, line {bad.line}: a field's double quotes do not match; close or double them"
        ) from None
    frame = _cut(rewritten.getvalue(), 0, field_end, record_end, layout.width)
    if frame is None:
        raise UserError(f"{path}: cannot be cut into fields; write it as plain CSV")
    return frame


def _cut(body: str, start: int, separator: str, end: str, width: int) -> pl.DataFrame | None:
    """The fields of text without quotes, or None where not every record has `width` of them."""
    import polars as pl

    single = separator if len(separator) == 1 else _unused(body, 1)[0]  # Polars accepts no longer ones
    schema = {str(i): pl.String for i in range(width)}
    frames = []
    while start < len(body):
        stop = body.find(end, start + _BLOCK_CHARACTERS) + 1 or len(body)
        raw = body[start:stop].replace(separator, single).removesuffix(end).encode()
        start = stop
        try:
            frame = pl.read_csv(raw, has_header=False, separator=single, eol_char=end, quote_char=None, schema=schema)
        except pl.exceptions.PolarsError:
            return None
        # Polars fills a record that is too short, and ignores a separator at its end.
        if raw.count(single.encode()) != frame.height * (width - 1):
            return None
        frames.append(frame.select(cells.compact(column) for column in frame))
    return pl.concat(frames, how="vertical_relaxed") if frames else pl.DataFrame(schema=schema)


def _unused(text: str, count: int) -> list[str]:
    """Control characters that do not occur in the text."""
    controls = (chr(code) for code in range(31, 0, -1) if chr(code) not in "\t\n\r")
    return list(islice((c for c in controls if c not in text), count))


def _uneven(where: str, fields: list[str], layout: _Layout) -> str:
    wrong, remedy = ("few", "complete") if len(fields) < layout.width else ("many", "shorten")
    return (
        f"{where}: too {wrong} fields, {len(fields)} instead of the {layout.width} of line 1: "
        f"{listing(fields)} (separated by {_BARS[layout.separator]}); {remedy} the line"
    )
