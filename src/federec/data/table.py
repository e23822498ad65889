"""From a file's bytes to its columns: compression, encoding, separator, header, quotes.

Polars cuts plain text into strings, block by block, so that it needs little memory. Where there are quotes, or a record
does not fit, Python's own `csv` reads the records. It is slower, but only `csv` knows what a quote means and on which
line a record starts.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from federec.data import cells
from federec.data.columns import choose, is_position, listing, recognise, shown, unnamed
from federec.errors import UserError

if TYPE_CHECKING:
    import polars as pl

SEPARATORS = {"\t": "tab", "::": "'::'", ",": "comma", ";": "semicolon", " ": "space"}
_SAMPLE_CHARACTERS, _SAMPLE_RECORDS = 1 << 16, 20
_BLOCK_CHARACTERS = 1 << 18  # processed at a time


@dataclass(frozen=True)
class Table:
    """The columns in use, by role, and how to name one of their cells to the user."""

    columns: dict[str, pl.Series]
    names: dict[str, str]
    where: Callable[[int], str]
    """Row (from 0) -> `file, line 7`."""


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


def read_table(raw: bytes, path: str, columns: Mapping[str, str]) -> Table:
    """The columns of an unpacked Parquet or text file."""
    return _parquet(raw, path, columns) if raw.startswith(b"PAR1") else _text(raw, path, columns)


def _parquet(raw: bytes, path: str, columns: Mapping[str, str]) -> Table:
    import polars as pl

    try:
        frame = pl.read_parquet(io.BytesIO(raw))
    except Exception:  # Polars has no one error for a damaged file
        raise UserError(f"{path}: the Parquet file is damaged; copy or write it again") from None
    chosen = choose(frame.columns, True, columns, path)
    if not frame.height:
        raise UserError(f"{path}: has columns but no rows; add some")
    return Table(
        {role: frame.to_series(position) for role, position in chosen.items()},
        {role: shown(frame.columns[position]) for role, position in chosen.items()},
        lambda row: f"{path}, row {row + 1}",
    )


def _text(raw: bytes, path: str, columns: Mapping[str, str]) -> Table:
    text = _decode(raw, path)
    if not text.strip():
        raise UserError(f"{path}: the file is empty; write one interaction per line, e.g. user,item,time")
    layout = _sniff(text, path, columns)
    has_header = _has_header(layout.sample, path, columns)
    names = layout.sample[0]
    chosen = choose(names, has_header, columns, f"{path}, line 1")
    frame = _frame(text, layout, has_header, path)
    if not frame.height:
        raise UserError(f"{path}: has a header but no rows; add some")

    def where(row: int) -> str:
        records = _records(text, layout.separator, layout.quoted)
        return f"{path}, line {next(islice(records, row + has_header, None))[0]}"

    return Table(
        {role: frame.to_series(position) for role, position in chosen.items()},
        {role: shown(names[i]) if has_header else f"{i} ({role})" for role, i in chosen.items()},
        where,
    )


def _decode(raw: bytes, path: str) -> str:
    """UTF-8 text with `\\n` between lines."""
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in raw:
        raw = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    try:
        text, bad = raw.decode().rstrip("\n"), raw.find(b"\0")  # a zero byte is valid UTF-8, but not text
    except UnicodeDecodeError as error:
        text, bad = "", error.start
    if bad >= 0:
        line = raw.count(b"\n", 0, bad) + 1
        raise UserError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8")
    return text


def _sniff(text: str, path: str, columns: Mapping[str, str]) -> _Layout:
    """The separator: one with which the header is recognised, else one that gives the first lines equal lengths."""
    head = text[:_SAMPLE_CHARACTERS]
    if len(head) < len(text):
        head = head[: head.rfind("\n") + 1] or head
    # `::` files and RecBole's .inter files have no quoted fields: a quote mark there is part of a title.
    quotes = '"' in text and ":token" not in head.partition("\n")[0]
    layouts = []
    for separator in SEPARATORS:
        quoted = quotes and separator != "::"
        records = _records(head, separator, quoted, strict=False)
        sample = [fields for _, fields in islice(records, _SAMPLE_RECORDS)]
        if sample and len(sample[0]) > 1:
            layouts.append(_Layout(separator, quoted, sample))
    if not layouts:
        *most, last = SEPARATORS.values()
        raise UserError(f"{path}, line 1: only one column found; separate user and item by {', '.join(most)} or {last}")
    named = [layout for layout in layouts if _names_columns(layout.sample[0], columns)]
    even = [layout for layout in layouts if len({len(fields) for fields in layout.sample}) == 1]
    return [*named, *even, *layouts][0]


def _names_columns(first: list[str], columns: Mapping[str, str]) -> bool:
    """Whether the first record names the user's columns, or both user and item by common names."""
    theirs = [column for column in columns.values() if not is_position(column)]
    return any(column in (name.strip() for name in first) for column in theirs) or _is_known(first)


def _is_known(first: list[str]) -> bool:
    return {"user", "item"} <= recognise(first).keys()


def _has_header(sample: list[list[str]], path: str, columns: Mapping[str, str]) -> bool:
    first, rest = sample[0], sample[1:]
    if _is_known(first) or any(not is_position(column) for column in columns.values()):
        return True
    valued = [all(map(_is_value, column)) for column in zip(*rest, strict=False)]
    likely = any(valued) and not any(map(_is_value, first))  # words above a column of numbers or dates
    known = recognise(first).keys()
    if not columns and (likely or known & {"user", "item"}):
        raise UserError(unnamed(first, [r for r in ("user", "item") if r not in known], f"{path}, line 1"))
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
        f"{listing(fields)} (separated by {SEPARATORS[layout.separator]}); {remedy} the line"
    )
