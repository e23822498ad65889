"""Rows of large products, only those that devices need (`mathematics.sampled`). Pairs of a device and an item are taken
item by item, so that what belongs to the item stays in cache while the devices pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from federec.kernels.columns import add_sums, dots
from federec.kernels.compiling import jit, kernel


class Thread(NamedTuple):
    """Which of the items a thread takes: the `first` and from there `every` second, third, ... one."""

    first: int
    every: int


class Pairs(NamedTuple):
    """Pairs sorted by item."""

    ptr: Any
    """[M + 1] where the pairs of each item lie."""
    order: Any
    """[P] the number of each."""
    owner: Any
    """[P] the device of each, in the order in which they were given."""


@kernel
def sort_pairs(ids: Any, pairs: Any) -> None:
    """Fill in `ptr`, which is 0 so far, and `order`."""
    ptr, order = pairs.ptr, pairs.order
    n_items = len(ptr) - 1
    for item in ids:
        ptr[item + 1] += 1
    for item in range(n_items):
        ptr[item + 1] += ptr[item]
    for place in range(len(ids)):
        item = ids[place]
        order[ptr[item]] = place
        ptr[item] += 1
    for item in range(n_items, 0, -1):  # each has moved on to where the next begins
        ptr[item] = ptr[item - 1]
    ptr[0] = 0


@jit
def _four(pairs: Any, start: int, stop: int, places: Any) -> Any:
    """The next four pairs of an item, the last one again where there are fewer; returns how many there are."""
    count = min(4, stop - start)
    for i in range(4):
        places[i] = pairs.order[start + min(i, count - 1)]
    return count


@kernel
def sampled_rows(thread: Any, pairs: Any, hidden: Any, weight: Any, bias: Any, out: Any) -> None:
    """A of all pairs of one thread's items, into `out` [P, r]. `weight` is F as [M, r, H], with r filled up by zeros to
    a multiple of four."""
    rank, tall = bias.shape[1], weight.shape[1]
    found, places, owner = np.empty((4, tall), np.float32), np.empty(4, np.int64), pairs.owner
    for item in range(thread.first, len(pairs.ptr) - 1, thread.every):
        own = weight[item]
        for start in range(pairs.ptr[item], pairs.ptr[item + 1], 4):
            count = _four(pairs, start, pairs.ptr[item + 1], places)
            a, b = hidden[owner[places[0]]], hidden[owner[places[1]]]
            c, d = hidden[owner[places[2]]], hidden[owner[places[3]]]
            for r in range(0, tall, 4):
                dots(own[r], own[r + 1], own[r + 2], own[r + 3], a, b, c, d, found[:, r : r + 4])
            for i in range(count):
                for r in range(rank):
                    out[places[i], r] = found[i, r] + bias[item, r]


@kernel
def sampled_pull(
    thread: Any, pairs: Any, hidden: Any, weight: Any, gradient: Any, of_weight: Any, of_bias: Any, of_hidden: Any
) -> None:
    """What gradients [P, r] of all pairs of one thread's items pull at, in F [H, M, r], f and h. `weight`: as above."""
    width, rank, tall = hidden.shape[1], gradient.shape[1], weight.shape[1]
    pulled, unused = np.empty((tall, width), np.float32), np.zeros((4, width), np.float32)
    along, back, places = np.zeros((4, tall), np.float32), np.zeros((tall, 4), np.float32), np.empty(4, np.int64)
    owner = pairs.owner
    for item in range(thread.first, len(pairs.ptr) - 1, thread.every):
        own = weight[item]
        pulled.fill(0)
        for start in range(pairs.ptr[item], pairs.ptr[item + 1], 4):
            count = _four(pairs, start, pairs.ptr[item + 1], places)
            along.fill(0)
            for i in range(count):
                for r in range(rank):
                    along[i, r] = gradient[places[i], r]
                    of_bias[item, r] += along[i, r]
            for i in range(4):
                for r in range(tall):
                    back[r, i] = along[i, r]
            u, v, x, y = owner[places[0]], owner[places[1]], owner[places[2]], owner[places[3]]
            a, b, c, d = hidden[u], hidden[v], hidden[x], hidden[y]
            for r in range(0, tall, 4):
                add_sums(pulled[r], pulled[r + 1], pulled[r + 2], pulled[r + 3], a, b, c, d, along[:, r : r + 4])
            # A device that fills up has gradients 0, but must not be written beside itself.
            a = of_hidden[u]
            b, c = of_hidden[v] if count > 1 else unused[1], of_hidden[x] if count > 2 else unused[2]
            d = of_hidden[y] if count > 3 else unused[3]
            for r in range(0, tall, 4):
                add_sums(a, b, c, d, own[r], own[r + 1], own[r + 2], own[r + 3], back[r : r + 4])
        for t in range(width):
            for r in range(rank):
                of_weight[t, item, r] = pulled[r, t]
