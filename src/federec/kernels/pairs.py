"""CPU kernel that sums over devices what each of them says of pairs of its items, number for number as in torch.

What a device says of a pair only depends on how far apart the two items are in its order, which of them comes first,
and how many items follow the later one: tables have it. Each row of the totals is one thread's, so no two threads write
to the same memory and there is one copy of the totals, whatever the number of threads. A row is collected in 64 bits,
over all devices that have the item.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from federec.kernels.compiling import kernel
from federec.kernels.machine import count_on


class Tables(NamedTuple):
    """Values by which pairs are weighed, each [longest history, parts]; the value of a pair is a product of two."""

    later: Any
    """By distance, where the column's item is the row's own or a newer one."""
    earlier: Any
    """By distance, where the column's item is older than the row's."""
    following: Any
    """By the number of items that follow both."""


class Sequences(NamedTuple):
    """The histories of some devices, one after the other, and where each item occurs in them."""

    items: Any
    """Item codes, oldest first on each device."""
    begin: Any
    """[len(items)] where the history begins that an item is in."""
    end: Any
    """[len(items)] where it ends."""
    places: Any
    """Places of items in `items`, sorted by item."""
    ptr: Any
    """[n_items + 1] item i is at `places[ptr[i]:ptr[i + 1]]`."""


@kernel
def add_pairs(owned: Any, row: Any, tables: Any, sequences: Any, total: Any) -> None:
    """Add one thread's rows of all parts to `total` [parts, items, items]. `row` [items, parts], all 0, is where it
    collects one."""
    later, earlier, following = tables
    items, begin, end, places, ptr = sequences
    parts, n_items, _ = total.shape
    own = count_on(owned.next)
    while own < len(owned.ptr) - 1:
        for item in range(owned.ptr[own], owned.ptr[own + 1]):
            if ptr[item] == ptr[item + 1]:
                continue
            for place in places[ptr[item] : ptr[item + 1]]:
                last = end[place] - 1
                for other in range(begin[place], place):
                    column, apart, follow = items[other], place - other, last - place
                    for part in range(parts):
                        row[column, part] += earlier[apart, part] * following[follow, part]
                for other in range(place, end[place]):
                    column, apart, follow = items[other], other - place, last - other
                    for part in range(parts):
                        row[column, part] += later[apart, part] * following[follow, part]
            for part in range(parts):
                for column in range(n_items):
                    total[part, item, column] += row[column, part]
            row.fill(0)
        own = count_on(owned.next)
