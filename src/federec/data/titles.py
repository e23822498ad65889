"""Titles of items: from a file, a data frame or a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from federec.data import cells
from federec.data.columns import TITLES
from federec.data.frames import Frame, is_frame, read_frame
from federec.data.interactions import Interactions
from federec.data.read import read_whole
from federec.data.table import Table, read_table, unpack
from federec.errors import UserError

Titles = str | Path | Frame | Mapping[int, str] | Mapping[float, str] | Mapping[str, str]


def with_titles(data: Interactions, titles: Titles) -> Interactions:
    """The data with these titles; those of items that it does not have are ignored."""
    found, name = read_titles(titles)
    known = {label: found[label] for label in map(str, data.item_ids) if label in found}
    if not known:
        theirs, ours = (", ".join(shown) for shown in (list(found)[:3], map(str, data.item_ids[:3])))
        raise UserError(
            f"{name}: has no title for any item of '{data.name}' (its items are like {theirs}, "
            f"the data's like {ours}); use the same ids in both"
        )
    return replace(data, titles=data.titles | known)


def read_titles(titles: Titles) -> tuple[dict[str, str], str]:
    """Item label (as text) -> title, and what to call the source in messages."""
    if isinstance(titles, str | Path):
        path = str(titles)
        return _titles(read_table(unpack(read_whole(Path(path)), path), path, {}, TITLES)), path
    if is_frame(titles):
        return _titles(read_frame(titles, "titles", {}, TITLES)), "titles"
    if isinstance(titles, Mapping):
        return {_label(item): str(title) for item, title in titles.items()}, "titles"
    raise UserError(
        f"titles: a {type(titles).__name__} cannot be read; give a file, a data frame with the columns item and "
        "title, or a mapping from item to title"
    )


def _label(item: float | str) -> str:
    """The label as text; tools turn whole numbers into floats when one is missing."""
    return str(int(item)) if isinstance(item, float) and item.is_integer() else str(item)


def _titles(table: Table) -> dict[str, str]:
    role = ""
    try:
        codes, labels = cells.ids(table.column(role := "item"))
        names = cells.texts(table.column(role := "title")).to_list()
    except cells.BadCell as bad:
        raise UserError(f"{table.cell(bad.row, role)}: {bad.problem}") from None
    return {str(labels[code]): name for code, name in zip(codes.tolist(), names, strict=True) if name}
