"""Interactions in a folder of columns as .npy files, which are memory-mapped instead of read.

    interactions.json   {"format": 1, "name": ..., "users": n, "items": n, "interactions": n, "sha256": ...}
    users.npy           int32 user codes, 0 to users - 1
    items.npy           int32 item codes, 0 to items - 1
    times.npy           float64, where there are times
    ratings.npy         float32, where there are ratings

One row is one distinct (user, item) pair; the codes are also the labels. Rows that are sorted by user, and each user's
rows from the oldest to the newest, are split without sorting or copying them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from federec.data.interactions import Interactions
from federec.errors import UserError
from federec.files import cannot_write, make_folder, read_bytes

_METADATA = "interactions.json"
_COLUMNS: dict[str, Any] = {"users": np.int32, "items": np.int32, "times": np.float64, "ratings": np.float32}
_ROLES = {"user": "users", "item": "items", "rating": "ratings", "timestamp": "times"}
_ROWS = 1 << 20  # checked at a time

Columns = Mapping[str, NDArray[Any]]


def write_folder(path: Path, name: str, users: int, items: int, rows: int, blocks: Iterable[Columns]) -> None:
    """Write blocks of rows, all with the same columns. The folder is complete in the end, or does not exist."""
    if path.exists():
        raise UserError(f"{path}: exists already; choose another --out")
    part = path.with_name(path.name + ".part")
    make_folder(part)
    digests: dict[str, Any] = {}
    try:
        for block in blocks:
            for column, values in block.items():
                kind = np.dtype(_COLUMNS[column]).newbyteorder("<")
                with (part / f"{column}.npy").open("ab") as file:
                    if column not in digests:
                        digests[column] = hashlib.sha256()
                        header = {"descr": kind.str, "fortran_order": False, "shape": (rows,)}
                        np.lib.format.write_array_header_1_0(file, header)
                    data = np.ascontiguousarray(values, kind).data
                    digests[column].update(data)
                    file.write(data)
        digest = hashlib.sha256(b"".join(digests[column].digest() for column in sorted(digests))).hexdigest()
        counts = {"users": users, "items": items, "interactions": rows}
        metadata = {"format": 1, "name": name, **counts, "sha256": digest}
        (part / _METADATA).write_text(json.dumps(metadata, indent=2) + "\n")
        part.rename(path)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def read_folder(path: Path) -> Interactions:
    """The interactions of such a folder. Codes are checked block by block; no whole column is ever in memory."""
    if not (path / _METADATA).is_file():
        raise UserError(f"{path}: is a folder without {_METADATA}; name a file, or a folder of `federec data generate`")
    try:
        metadata = json.loads(read_bytes(path / _METADATA))
        n_users, n_items, rows = int(metadata["users"]), int(metadata["items"]), int(metadata["interactions"])
        name, digest = str(metadata["name"]), str(metadata["sha256"])
        if metadata["format"] != 1:
            raise UserError(
                f"{path / _METADATA}: format {metadata['format']} is not known to this version; update federec"
            )
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path / _METADATA}: is damaged; generate the data again") from None
    columns = {column: _open(path / f"{column}.npy", kind, rows) for column, kind in _COLUMNS.items()}
    users, items = columns["users"], columns["items"]
    if users is None or items is None:
        raise UserError(f"{path}: has no users.npy or no items.npy; generate the data again")
    for column, codes, count in (("users", users, n_users), ("items", items, n_items)):
        blocks = (codes[start : start + _ROWS] for start in range(0, rows, _ROWS))
        if not all(block.min() >= 0 and block.max() < count for block in blocks):
            raise UserError(f"{path / column}.npy: has codes outside 0..{count - 1}; generate the data again")
    return Interactions(
        name=name,
        users=users,
        items=items,
        user_ids=np.arange(n_users),
        item_ids=np.arange(n_items),
        times=columns["times"],
        ratings=columns["ratings"],
        sha256=digest,
        source_rows=rows,
        columns={role: column for role, column in _ROLES.items() if columns[column] is not None},
    )


def _open(path: Path, kind: Any, rows: int) -> NDArray[Any] | None:
    """A memory-mapped column; None where there is no such file."""
    if not path.exists():
        return None
    try:
        column = np.load(path, mmap_mode="r")
    except (ValueError, EOFError):
        raise UserError(f"{path}: is truncated or damaged; generate the data again") from None
    if column.dtype != kind or column.shape != (rows,):
        raise UserError(f"{path}: is not {rows} values of {np.dtype(kind)}; generate the data again")
    return np.asarray(column)
