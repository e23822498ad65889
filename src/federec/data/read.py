"""Reading a user's own file: CSV, TSV, `::`, Parquet or RecBole's .inter, also compressed with gzip."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from federec.data import cells
from federec.data.interactions import Interactions
from federec.data.prepare import Rows, prepare
from federec.data.table import Table, read_table, unpack
from federec.errors import UserError


def read_file(
    path: str | Path,
    columns: Mapping[str, str] | None = None,
    min_interactions: int = 0,
    k_core: int = 0,
    name: str | None = None,
) -> Interactions:
    """The interactions of a file; every fault is a `UserError` that names the line and the remedy.

    `columns` says which column is the user, item, rating or timestamp, by its name in the header or by its
    position from 0. Users with fewer than `min_interactions` rows are left out first; then, with `k_core`,
    users and items with fewer than k partners, until all have k.
    """
    raw = _bytes(Path(path))
    rows = _rows(read_table(unpack(raw, str(path)), str(path), columns or {}))
    return prepare(rows, name or Path(path).name, hashlib.sha256(raw).hexdigest(), min_interactions, k_core)


def _bytes(path: Path) -> bytes:
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


def _rows(table: Table) -> Rows:
    role = ""
    try:
        users, user_ids = cells.ids(table.columns[role := "user"])
        items, item_ids = cells.ids(table.columns[role := "item"])
        times = cells.times(table.columns[role]) if (role := "timestamp") in table.columns else None
        ratings = cells.ratings(table.columns[role]) if (role := "rating") in table.columns else None
    except cells.BadCell as bad:
        raise UserError(f"{table.where(bad.row)}, column {table.names[role]}: {bad.problem}") from None
    return Rows(users, items, user_ids, item_ids, times, ratings)
