"""From a column of cells to an array of ids, times, ratings or parts, or to the first bad row and its problem."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from federec.data.columns import shown
from federec.data.interactions import Ids

if TYPE_CHECKING:
    import polars as pl

# How tools write a missing value.
_NO_VALUE = ("", "nan", "NaN", "NAN", "null", "NULL", "<NA>")

# Dates in other forms than ISO 8601, only such in which nobody can take the day for the month.
_FORMS = (
    "%m %d, %Y",  # reviewTime of Amazon's reviews
    "%b %d, %Y",
    "%B %d, %Y",
    "%d-%b-%Y",
    "%d %b %Y",
    "%d %B %Y",
    "%d %b %Y %H:%M",
    "%d %b %Y, %H:%M",  # exports of Last.fm
    "%d %b %Y %H:%M:%S",
    "%a, %d %b %Y %H:%M:%S %z",  # e-mail and HTTP
    "%a %b %d %H:%M:%S %Y",
    "%a %b %d %H:%M:%S %z %Y",  # Goodreads, Twitter
)
_DAY_OR_MONTH = re.compile(r"\s*\d{1,2}([/.-])\d{1,2}\1(\d{4}|\d\d)\b")
_IN_SECONDS = (3e8, 4e9)
"""From 1979 to 2096: whole numbers between these look like times, and so do a thousand times as large ones."""

PARTS = {"train": 0, "valid": 1, "validation": 1, "val": 1, "dev": 1, "test": 2}
"""How sources name the parts of a split."""


class BadCell(Exception):
    """A cell that cannot be read: its row (from 0) and what to do about it."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row, self.problem = row, problem


def number(text: str) -> float | None:
    """A decimal number, or None."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def seconds(text: str) -> float | None:
    """A finite number unchanged; a date as seconds since 1970, in UTC unless it has a time zone. Dates are in ISO 8601,
    or in another form that cannot be misunderstood."""
    value = number(text)
    if value is not None:
        return value if math.isfinite(value) else None
    try:
        moment: datetime | None = datetime.fromisoformat(text.strip())
    except ValueError:
        moment = _in_another_form(text.strip())
    if moment is None:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _in_another_form(text: str) -> datetime | None:
    """A date with a slash or a named time zone in ISO 8601, or in the form whose shape the text has."""
    text = re.sub(r" ?(UTC|GMT)$", " +0000", text)
    if re.match(r"\d{4}[/-]", text):
        with suppress(ValueError):
            return datetime.fromisoformat(text.replace("/", "-").replace(" +0000", "+00:00"))
    for form in _FORMS_OF_SHAPE.get(_shape(text), ()):
        with suppress(ValueError):
            return datetime.strptime(text, form)
    return None


def _shape(text: str) -> str:
    """The text with `a` for every word and `9` for every number: `31 May 2018` has the shape `9 a 9`."""
    return re.sub(r"\d+", "9", re.sub(r"[^\W\d_]+", "a", text)).replace("+", "-")


_FORMS_OF_SHAPE: dict[str, list[str]] = {}  # a text is compared with few forms, because it may be no date at all
for _form in _FORMS:
    _FORMS_OF_SHAPE.setdefault(_shape(datetime(2018, 5, 31, tzinfo=UTC).strftime(_form)), []).append(_form)


def looks_like_times(column: Sequence[object]) -> bool:
    """Whether all cells of a sample could be times: dates, or numbers of seconds or milliseconds since 1970."""
    texts = [text for text in map(str, column) if text.strip(" ") not in (*_NO_VALUE, "None")]
    return bool(texts) and all(map(_looks_like_time, texts))


def _looks_like_time(text: str) -> bool:
    value = number(text)
    if value is None:
        return seconds(text) is not None
    least, most = _IN_SECONDS
    return least <= value <= most or least <= value / 1e3 <= most


def compact(column: pl.Series) -> pl.Series:
    """Text as integers, which take half the space, where they would be written as the same text."""
    import polars as pl

    integers = column.cast(pl.Int64, strict=False)
    return integers if integers.cast(pl.String).equals(column) else column


def ids(column: pl.Series) -> tuple[NDArray[np.int32], Ids]:
    """Codes in order of first appearance, and the labels: int64 where all are canonical whole numbers, else str."""
    import polars as pl

    _refuse_nested(column, "is no id; use text or whole numbers")
    column = _whole(column) if column.dtype.is_float() or column.dtype.is_decimal() else _plain(column)
    if column.dtype == pl.String:
        column = column.str.strip_chars(" ")
        missing = column.is_null() | column.is_in(_NO_VALUE)
    else:
        missing = column.is_null()
    if missing.any():
        cell = column[_first(missing)]
        found = f"{shown(cell)} is no id" if cell else "the id is blank"
        raise BadCell(_first(missing), f"{found}; fill it in or delete the row")
    labels = column.unique(maintain_order=True)
    order = pl.Series(range(len(labels)), dtype=pl.Int32)
    return column.replace_strict(labels, order, return_dtype=pl.Int32).to_numpy(), _labels(labels)


def times(column: pl.Series) -> NDArray[np.float64] | None:
    """Finite numbers; None where no row has a time."""
    import polars as pl

    if column.dtype in (pl.Date, pl.Datetime):
        column = column.cast(pl.Datetime("us")).dt.timestamp("us").cast(pl.Float64) / 1e6
    _refuse_nested(column, "is not a time; use a number or an ISO 8601 date such as 2024-05-31T12:00:00")
    blank, values = _numbers(_plain(column), seconds)
    if blank.all():
        return None
    if blank.any():
        raise BadCell(_first(blank), "the time is blank; give every row a time, or none")
    bad = ~values.is_finite().fill_null(False)
    if bad.any() and _DAY_OR_MONTH.match(str(column[_first(bad)])):
        _refuse(column, bad, "may begin with the day or with the month; write it as 2024-05-31")
    _refuse(column, bad, "is not a time; use a number or an ISO 8601 date such as 2024-05-31T12:00:00")
    return values.to_numpy()


def ratings(column: pl.Series) -> NDArray[np.float32] | None:
    """Numbers, NaN where blank; None where no row has a rating."""
    import polars as pl

    _refuse_nested(column, "is not a number; write e.g. 3.5, or leave it blank")
    column = column.cast(pl.Int8) if column.dtype == pl.Boolean else column  # liked or not
    blank, values = _numbers(_plain(column), number)
    if blank.all():
        return None
    _refuse(
        column,
        ~blank & ~values.is_finite().fill_null(False),
        "is not a number; write e.g. 3.5, or leave it blank",
    )
    return values.fill_null(math.nan).cast(pl.Float32).to_numpy()


def texts(column: pl.Series) -> pl.Series:
    """Text without blanks around it."""
    import polars as pl

    _refuse_nested(column, "is not text")
    return _plain(column).cast(pl.String).str.strip_chars(" ")


def parts(column: pl.Series) -> NDArray[np.int8]:
    """0 for training, 1 for validation, 2 for test."""
    import polars as pl

    text = texts(column).str.to_lowercase().fill_null("")
    _refuse(text, ~text.is_in(list(PARTS)), "is no part of a split; write train, valid or test, or rename the column")
    return text.replace_strict(PARTS, return_dtype=pl.Int8).to_numpy()


def _numbers(column: pl.Series, parse: Callable[[str], float | None]) -> tuple[pl.Series, pl.Series]:
    """Which cells are blank, and all cells as floats (null where a cell is no number)."""
    import polars as pl

    if column.dtype != pl.String:
        values = column.cast(pl.Float64).fill_nan(None)
        return values.is_null(), values
    text = column.str.strip_chars(" ")
    blank = text.is_null() | text.is_in(_NO_VALUE)
    values = text.cast(pl.Float64, strict=False).fill_nan(None)
    if (values.is_null() & ~blank).any():  # not plain numbers: read each distinct text separately
        distinct = text.filter(~blank).unique()
        parsed = distinct.map_elements(parse, return_dtype=pl.Float64)
        values = text.replace_strict(distinct, parsed, default=None, return_dtype=pl.Float64)
    return blank, values


def _refuse(column: pl.Series, bad: pl.Series, problem: str) -> None:
    if bad.any():
        raise BadCell(_first(bad), f"{shown(column[_first(bad)])} {problem}")


def _refuse_nested(column: pl.Series, problem: str) -> None:
    """Refuse lists, structures and durations, which are neither text nor numbers."""
    import polars as pl

    if column.dtype.is_nested() or column.dtype in (pl.Duration, pl.Time, pl.Object):
        raise BadCell(0, f"{column.dtype} {problem}")


def _first(mask: pl.Series) -> int:
    return int(mask.arg_max() or 0)


def _plain(column: pl.Series) -> pl.Series:
    """A column of text or numbers; Parquet has many more types."""
    import polars as pl

    if column.dtype.is_numeric():
        return column
    try:
        return column.cast(pl.String)
    except pl.exceptions.PolarsError:  # bytes
        bad = (row for row, cell in enumerate(column) if cell and cell.decode(errors="ignore").encode() != cell)
        raise BadCell(next(bad), "the bytes are not UTF-8 text; decode them first") from None


def _whole(column: pl.Series) -> pl.Series:
    """Integers where floats or decimals are whole numbers: tools turn integer ids into floats when one is missing."""
    import polars as pl

    column = column.fill_nan(None) if column.dtype.is_float() else column
    integers = column.cast(pl.Int64, strict=False)
    return integers if integers.cast(column.dtype).equals(column) else column


def _labels(labels: pl.Series) -> Ids:
    import polars as pl

    if labels.dtype.is_integer():
        as_integers = labels.cast(pl.Int64, strict=False)
    else:
        labels = labels.cast(pl.String)
        canonical = labels.str.contains(r"^(0|-?[1-9][0-9]*)$").all()
        as_integers = labels.cast(pl.Int64, strict=False) if canonical else labels
    if as_integers.dtype == pl.Int64 and not as_integers.has_nulls():
        return as_integers.to_numpy()
    return np.array(labels.cast(pl.String).to_list(), dtype=object)
