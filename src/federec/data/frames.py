"""Data frames as sources: Polars, pandas, pyarrow, and whatever else gives an Arrow stream.

pandas and pyarrow are never imported here: a frame brings its library with it. Only columns in use are converted, one
after the other, so that no second copy of a large frame is ever in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from federec.data.columns import INTERACTIONS, Kind, choose
from federec.data.table import SAMPLE_RECORDS, Table, frame_table, tabled
from federec.errors import UserError

if TYPE_CHECKING:
    import polars as pl


class _Columns(Protocol):
    """A pandas or Polars frame, or a table of pyarrow."""

    @property
    def columns(self) -> Any: ...


class _ArrowStream(Protocol):
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Frame = _Columns | _ArrowStream
"""A data frame: of pandas, Polars or pyarrow, or of any library that gives Arrow streams."""

IN_PYTHON = replace(INTERACTIONS, option="columns")


def is_frame(source: object) -> bool:
    """Whether `read_frame` can read it."""
    return _is_pandas(source) or _is_lazy(source) or hasattr(source, "__arrow_c_stream__")


def read_frame(source: Any, name: str, columns: Mapping[str, str], kind: Kind = IN_PYTHON) -> Table:
    """The columns of a frame in use, by role."""
    import polars as pl

    if _is_pandas(source):
        return _pandas_table(source, name, columns, kind)
    if isinstance(source, pl.DataFrame):
        return frame_table(source, name, columns, kind)
    try:
        if _is_lazy(source):
            return _lazy_table(source, name, columns, kind)
        if hasattr(source, "column_names") and hasattr(source, "column"):
            return _arrow_table(source, name, columns, kind)
        frame = pl.DataFrame(source)
    except UserError:
        raise
    except Exception as error:  # a lazy query and a stranger's stream can fail with anything
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{name}: a {type(source).__name__} cannot be read as a table ({why})") from None
    return frame_table(frame, name, columns, kind)


def _is_pandas(source: object) -> bool:
    """Whether it is a pandas frame, or of a class that derives from it."""
    parents = type(source).__mro__
    return any(each.__name__ == "DataFrame" and each.__module__.split(".")[0] == "pandas" for each in parents)


def _is_lazy(source: object) -> bool:
    return type(source).__name__ == "LazyFrame" and type(source).__module__.split(".")[0] == "polars"


def _lazy_table(query: pl.LazyFrame, name: str, columns: Mapping[str, str], kind: Kind) -> Table:
    """Only the chosen columns are computed, and the first few cells of the others: one of them may be the time."""
    import polars as pl

    names = query.collect_schema().names()
    chosen = choose(names, True, columns, name, kind)
    free = [other for at, other in enumerate(names) if at not in chosen.values() and "timestamp" not in chosen]
    used = query.select(names[position] for position in chosen.values())
    frame, head = pl.collect_all([used, query.select(free).head(SAMPLE_RECORDS)])  # what both need is computed once
    return _table(name, names, chosen, True, frame.height, lambda i: frame[names[i]], lambda i: list(head[names[i]]))


def _arrow_table(table: Any, name: str, columns: Mapping[str, str], kind: Kind) -> Table:
    """A table or a record batch of pyarrow, whose columns are shared, not copied."""
    import polars as pl

    names = list(table.column_names)
    chosen = choose(names, True, columns, name, kind)

    def column(position: int) -> pl.Series:
        return pl.Series(table.column(position))

    def sample(position: int) -> Sequence[object]:
        return pl.Series(table.column(position).slice(0, SAMPLE_RECORDS)).to_list()

    return _table(name, names, chosen, True, table.num_rows, column, sample)


def _pandas_table(frame: Any, name: str, columns: Mapping[str, str], kind: Kind) -> Table:
    """The columns of the frame and the levels of its index that have a name."""
    if frame.columns.nlevels > 1:
        raise UserError(f"{name}: its column names have {frame.columns.nlevels} levels; give each column one name")
    index = frame.index.names
    levels = [at for at, level in enumerate(index) if level is not None and level not in frame.columns]
    counted = list(frame.columns) == list(range(len(frame.columns)))  # as pandas does where there are no names
    has_header = bool(levels) or not counted
    names = [*map(str, frame.columns), *(str(index[at]) for at in levels)]
    chosen = choose(names, has_header, columns, name, kind)

    def column(position: int) -> Any:
        if position < len(frame.columns):
            return frame.iloc[:, position]
        return frame.index.get_level_values(levels[position - len(frame.columns)]).to_series()

    def sample(position: int) -> Sequence[object]:
        return list(column(position).head(SAMPLE_RECORDS))

    def cells(position: int) -> pl.Series:
        return _from_pandas(column(position))

    return _table(name, names, chosen, has_header, len(frame), cells, sample)


def _table(
    name: str,
    names: Sequence[str],
    chosen: Mapping[str, int],
    has_header: bool,
    rows: int,
    column: Callable[[int], pl.Series],
    sample: Callable[[int], Sequence[object]],
) -> Table:
    if not rows:
        raise UserError(f"{name}: has columns but no rows; add some")
    return tabled(names, chosen, has_header, column, sample, lambda row: f"{name}, row {row + 1}")


def _from_pandas(column: Any) -> pl.Series:
    """A pandas column of any type; pyarrow is needed only where pandas itself uses it for the column."""
    import polars as pl

    kind = column.dtype
    if hasattr(kind, "pyarrow_dtype") or getattr(kind, "storage", "") == "pyarrow":
        return pl.Series(column.array.__arrow_array__())
    if hasattr(kind, "categories"):
        labels = _from_pandas(column.cat.categories.to_series())
        return labels.gather(pl.Series(column.cat.codes.to_numpy()).cast(pl.UInt32, strict=False))  # -1: missing
    if kind.kind == "M":
        in_utc = column.dt.tz_convert(None) if getattr(kind, "tz", None) is not None else column
        return pl.Series(in_utc.to_numpy().astype("datetime64[us]"))
    if hasattr(kind, "numpy_dtype"):  # numbers beside a mask of the missing ones
        values = pl.Series(column.to_numpy(dtype=kind.numpy_dtype, na_value=0))
        return values.set(pl.Series(column.isna().to_numpy()), None)
    if kind.kind in "biuf":
        return pl.Series(np.ascontiguousarray(column.to_numpy()))
    return _from_objects(column.to_numpy(dtype=object), column.isna().to_numpy())


def _from_objects(values: Any, missing: Any) -> pl.Series:
    """Python objects: of one type, or all of them as text."""
    import polars as pl

    known = [None if gone else value for value, gone in zip(values, missing, strict=True)]
    try:
        column = pl.Series(known)
    except Exception:  # Polars has no one error for objects of several types
        column = pl.Series(dtype=pl.Object)
    if column.dtype != pl.Object:
        return column
    return pl.Series([None if value is None else str(value) for value in known], dtype=pl.String)
