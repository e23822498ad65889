"""Rows of large products, only those that devices need (`mathematics.sampled`). Pairs of a device and an item are taken
item by item, so that what belongs to the item stays in cache while the devices pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from federec.kernels.columns import dots
from federec.kernels.compiling import jit, kernel
from federec.kernels.cpu import floats
from federec.kernels.lanes import LINE, plus, read, times, write


class Thread(NamedTuple):
    """Which of the items a thread takes, the `first` and from there `every` second, third, ... one, and its memory."""

    first: int
    every: int
    places: Any
    """[4] the pairs at hand."""
    found: Any
    """[4, r] what is computed for them."""
    pulled: Any
    """[r, 16] what a line of F is pulled at."""


def make_thread(first: int, every: int, rank: int) -> Thread:
    """With memory for products with so many columns, filled up to a multiple of four."""
    return Thread(first, every, np.zeros(4, np.int64), floats(4, rank), floats(rank, LINE))


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
    """A of all pairs of one thread's items, into `out` [P, r]. `weight` is F as [M, r, H], filled up by zeros: r to a
    multiple of four, H, as in `hidden`, to one of 16."""
    rank, tall, owner, places, found = bias.shape[1], weight.shape[1], pairs.owner, thread.places, thread.found
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


@jit
def _pull_line(
    places: Any, owner: Any, gradient: Any, r: Any, hidden: Any, of_hidden: Any, own: Any, column: Any, pulled: Any
) -> None:
    """What four columns of an item's gradients, from `r` on, pull at in one line of all h_i, `of_hidden`, and of F,
    `pulled`. F's lines, which lie at `column`, and what is pulled at stay in registers while the devices pass."""
    a, b = read(own, r, column), read(own, r + 1, column)
    c, d = read(own, r + 2, column), read(own, r + 3, column)
    w, x, y, z = read(pulled, r, 0), read(pulled, r + 1, 0), read(pulled, r + 2, 0), read(pulled, r + 3, 0)
    for place in range(places[0], places[1]):
        device = owner[place]
        h, total = read(hidden, device, 0), read(of_hidden, device, 0)
        g0, g1, g2, g3 = gradient[place, r], gradient[place, r + 1], gradient[place, r + 2], gradient[place, r + 3]
        w, x, y, z = plus(w, times(h, g0)), plus(x, times(h, g1)), plus(y, times(h, g2)), plus(z, times(h, g3))
        total = plus(plus(total, times(a, g0)), times(b, g1))
        total = plus(plus(total, times(c, g2)), times(d, g3))
        write(of_hidden, device, 0, total)
    write(pulled, r, 0, w)
    write(pulled, r + 1, 0, x)
    write(pulled, r + 2, 0, y)
    write(pulled, r + 3, 0, z)


@kernel
def sampled_pull(
    thread: Any, pairs: Any, hidden: Any, weight: Any, gradient: Any, of_weight: Any, of_bias: Any, of_hidden: Any
) -> None:
    """What gradients of all pairs of one thread's items pull at, in F [H, M, r], f and h. `weight`: as above. The
    pairs' owners and their gradients, [P, r] filled up like `weight`, are sorted by item, because they are read for
    each line. `hidden` and `of_hidden` are line by line, [H / 16, C, 16]: a line of all devices stays in cache while
    all items pass, where whole rows would not."""
    width, n_items, rank = of_weight.shape
    tall, ptr, pulled = weight.shape[1], pairs.ptr, thread.pulled
    for item in range(thread.first, n_items, thread.every):
        for place in range(ptr[item], ptr[item + 1]):
            for r in range(rank):
                of_bias[item, r] += gradient[place, r]
    for line in range(len(hidden)):
        column, h, of_h = line * LINE, hidden[line], of_hidden[line]
        for item in range(thread.first, n_items, thread.every):
            pulled.fill(0)
            places = ptr[item : item + 2]
            for r in range(0, tall, 4):
                _pull_line(places, pairs.owner, gradient, r, h, of_h, weight[item], column, pulled)
            for t in range(min(LINE, width - column)):
                for r in range(rank):
                    of_weight[column + t, item, r] = pulled[r, t]
