"""Reading a user's own data: a data frame, or a file in CSV, TSV, `::`, Parquet or RecBole's .inter, also with gzip."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from federec.data import cells
from federec.data.frames import Frame, read_frame
from federec.data.interactions import Ids, Interactions
from federec.data.prepare import ALL, Filters, Rows, prepare
from federec.data.table import Table, read_table, unpack
from federec.errors import UserError


@dataclass(frozen=True)
class Source:
    """The rows of a source as they were read, before any of them is left out, and what is to be said of it."""

    rows: Rows
    name: str
    sha256: str = ""
    columns: dict[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    maybe_time: str = ""

    def prepare(self, filters: Filters = ALL) -> Interactions:
        """The interactions that are left after the filters."""
        data = prepare(self.rows, self.name, self.sha256, filters)
        return replace(data, columns=self.columns, unused=self.unused, maybe_time=self.maybe_time)


def read_file(
    path: str | Path, columns: Mapping[str, str] | None = None, filters: Filters = ALL, name: str | None = None
) -> Interactions:
    """The interactions of a file; every fault is a `UserError` that names the line and the remedy.

    `columns` says which column is the user, item, rating, timestamp or split, by its name in the header or by its
    position from 0.
    """
    return read_source(path, columns, name).prepare(filters)


def read_source(
    source: str | Path | Frame, columns: Mapping[str, str] | None = None, name: str | None = None
) -> Source:
    """The rows of a file or of a frame."""
    if not isinstance(source, str | Path):
        return _source(read_frame(source, name or "frame", columns or {}), name or "frame", "")
    path = Path(source)
    raw = read_whole(path)
    digest = hashlib.sha256(raw).hexdigest()
    return _source(read_table(unpack(raw, str(source)), str(source), columns or {}), name or path.name, digest)


def read_whole(path: Path) -> bytes:
    """The bytes of a file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder; name the file in it") from None
    except PermissionError:
        raise UserError(f"{path}: permission denied; make the file readable for you") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check the disk and the path") from None


def with_held_out(source: Source, held_out: Mapping[str, Source]) -> Source:
    """The rows of `source` for training, followed by those of `valid` and `test`."""
    if source.rows.parts is not None or any(other.rows.parts is not None for other in held_out.values()):
        raise UserError(
            f"'{source.name}': a split column and held-out files both say what is held out; leave out one of them"
        )
    rows = replace(source.rows, parts=np.zeros(len(source.rows), np.int8))
    digests, unused = [source.sha256], source.unused
    for part, other in held_out.items():
        if (source.rows.times is None) != (other.rows.times is None):
            without = source.name if source.rows.times is None else other.name
            raise UserError(
                f"'{source.name}' and '{other.name}': only '{without}' has no times; give all rows times, or none"
            )
        parts = np.full(len(other.rows), cells.PARTS[part], np.int8)
        rows = _joined(rows, replace(other.rows, parts=parts))
        unused += other.unused
        digests.append(other.sha256)
    digest = hashlib.sha256("".join(digests).encode()).hexdigest() if all(digests) else ""
    return replace(source, rows=rows, sha256=digest, unused=tuple(dict.fromkeys(unused)))


def _source(table: Table, name: str, sha256: str) -> Source:
    rows = _rows(table)
    blank = {"timestamp"} & table.names.keys() if rows.times is None else set()
    blank |= {"rating"} & table.names.keys() if rows.ratings is None else set()
    used = {role: column for role, column in table.names.items() if role not in blank}
    unused = (*table.unused, *(table.names[role] for role in sorted(blank)))
    return Source(rows, name, sha256, used, unused, table.maybe_time)


def _rows(table: Table) -> Rows:
    role = ""
    try:
        users, user_ids = cells.ids(table.column(role := "user"))
        items, item_ids = cells.ids(table.column(role := "item"))
        times = cells.times(table.column(role)) if (role := "timestamp") in table.names else None
        ratings = cells.ratings(table.column(role)) if (role := "rating") in table.names else None
        parts = cells.parts(table.column(role)) if (role := "split") in table.names else None
    except cells.BadCell as bad:
        raise UserError(f"{table.cell(bad.row, role)}: {bad.problem}") from None
    return Rows(users, items, user_ids, item_ids, times, ratings, parts)


def _joined(first: Rows, second: Rows) -> Rows:
    """All rows of both; the same label is the same user or item."""
    users, user_ids = _joined_codes(first.users, first.user_ids, second.users, second.user_ids)
    items, item_ids = _joined_codes(first.items, first.item_ids, second.items, second.item_ids)
    ratings = None
    if first.ratings is not None or second.ratings is not None:
        blank = (
            np.full(len(rows), np.nan, np.float32) if rows.ratings is None else rows.ratings for rows in (first, second)
        )
        ratings = np.concatenate(list(blank))
    times = None
    if first.times is not None and second.times is not None:
        times = np.concatenate([first.times, second.times])
    assert first.parts is not None and second.parts is not None
    return Rows(users, items, user_ids, item_ids, times, ratings, np.concatenate([first.parts, second.parts]))


def _joined_codes(
    codes: NDArray[np.integer], ids: Ids, other_codes: NDArray[np.integer], other_ids: Ids
) -> tuple[NDArray[np.int32], Ids]:
    import polars as pl

    if ids.dtype != other_ids.dtype:  # `42` and `"42"` are the same label
        ids, other_ids = (labels.astype(str).astype(object) for labels in (ids, other_ids))
    new, labels = cells.ids(pl.Series(np.concatenate([ids, other_ids])))
    return np.concatenate([new[: len(ids)][codes], new[len(ids) :][other_codes]]), labels
