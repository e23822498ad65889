"""Pieces of the CPU kernels: the random streams and the drawing of samples, number for number as in `cohort.draw`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from federec import streams
from federec.kernels.compiling import exact, jit
from federec.kernels.lanes import LINE, filled, minus, plus, read, write
from federec.kernels.machine import count_on, fetch

_GOLDEN = np.uint64(streams.GOLDEN & 0xFFFF_FFFF_FFFF_FFFF)
_FIRST = np.uint64(0xBF58_476D_1CE4_E5B9)
_SECOND = np.uint64(0x94D0_49BB_1331_11EB)
_NEGATIVES = np.uint64(streams.NEGATIVES)
_SHUFFLE = np.uint64(streams.SHUFFLE)
_LAPLACE = np.uint64(streams.LAPLACE)

DIGIT = 12
"""The most first bits of a random key by which samples are sorted into bins."""
_ROOT = np.int32(0x3F3504F3)  # the bits of sqrt(1/2)
_WHOLE = np.float32(1.5 * 2**23)
_WORDS = 64  # of random bits that noise is made of at a time

AHEAD = 32
"""Rows that are on their way from memory while one is at work."""


def floats(*sizes: int) -> Any:
    """Zeros that begin with a line of memory: reading 16 at once would else take two lines each time. Nothing else is
    in their last line, which another thread might write."""
    size = math.prod(sizes)
    values = np.zeros(-(-size // LINE) * LINE + LINE - 1, np.float32)
    start = -(values.ctypes.data // 4) % LINE
    return values[start : start + size].reshape(sizes)


def integers(*sizes: int) -> Any:
    """Zeros of 32 bits."""
    return np.zeros(sizes, np.int32)


class Parts(NamedTuple):
    """The users who play, cut into parts. A thread that is done with a part takes the next one, so that all threads end
    at about the same time, however fast each of them is. Kernels write that loop out, because a generator of numba's
    never lets go of what it was given."""

    ptr: Any
    """[parts + 1] where each part begins."""
    next: Any
    """[1] the part to be taken next; all threads count on here."""
    ended: Any
    """[parts, 8] for each part, in the first place: how many of the two sums that are merged at it are ready."""


class Histories(NamedTuple):
    """What all devices learn from: `cohort.draw.Devices` as arrays."""

    ptr: Any
    train: Any
    closed_ptr: Any
    gaps: Any


class Players(NamedTuple):
    """The users who play, those with most samples first."""

    users: Any
    keys: Any
    """Of their random streams in the round."""
    places: Any
    """Where each user is in the arrays `ask`, `judges` and `Outcome.scores`."""
    ask: Any
    """[C, K] items to score with each user's own rows."""
    judges: Any
    """[C, values] of other users, to score them with: w and b, where rows are mixed a beside them, or p, q and a
    network; empty: the user's own."""


class Outcome(NamedTuple):
    """Where threads put what comes of the users. Sums are those of each part, so that they do not depend on which
    thread took it; at the end those of the first part are the sums of all, and the others are 0."""

    scores: Any
    """[C, K] of the items that are asked for."""
    sent: Any
    """[C, 3 + layers] rows that each user held, rows and values it changed; then values it changed of each layer."""
    total: Any
    """[parts, M, dim] the sum of what users send of item rows."""
    layer_total: Any
    """[parts, values] the same of layers; no values where none are sent."""
    loss: Any
    """[parts, 8] the sum of the losses, and their number; the rest fills a line of memory. These are not merged."""
    ranks: Any
    """[C, lists] of the items asked for, in so many lists of the same length, the rank of the first of each."""


class Request(NamedTuple):
    """Items to score for users with the server's rows."""

    users: Any
    ask: Any
    """[C, K]"""
    scores: Any
    """[C, K] where the scores are put."""


class Sorting(NamedTuple):
    """What shuffling works with."""

    order: Any
    """The positions of the samples as they were last shuffled."""
    keys: Any
    spare: Any
    spare_keys: Any
    bins: Any


class Samples(NamedTuple):
    """What a thread keeps of the samples of the device at hand."""

    slot_of: Any
    """[n_items] an item's row in the device's tables; -1: it has none."""
    open_items: Any
    """[n_items + 2] for drawing."""
    ids: Any
    """The item of each row; one place more than there can be rows."""
    drawn: Any
    """Each positive followed by its negatives: first items, then their rows."""
    sorting: Sorting


class Noise(NamedTuple):
    """Laplace noise on what is sent."""

    scale: np.float32
    """0 means that there is none."""
    random: Any
    drawn: Any
    """Random bits, and the noise made of them: memory of one thread."""


def make_noise(scale: float) -> Noise:
    """For one thread."""
    return Noise(np.float32(scale), np.zeros(_WORDS, np.uint64), np.zeros(4 * _WORDS, np.float32))


class Emphasis(NamedTuple):
    """How much the samples of a row weigh, as `plugins.recency` has it."""

    ptr: Any
    items: Any
    """The histories of all devices: each item once, oldest first."""
    weights: Any
    """Of a positive by its age, before those of a device are made 1 on average."""
    of_row: Any
    """[rows] of the device at hand."""


def make_samples(n_items: int, most: int) -> Samples:
    """For any device with at most `most` samples."""
    sorting = Sorting(integers(most), integers(most), integers(most), integers(most), integers(1 << DIGIT))
    slot_of = np.full(n_items, -1, np.int32)
    return Samples(slot_of, integers(n_items + 2), integers(min(most, n_items) + 1), integers(most), sorting)


@jit
def merge(ended: Any, part: int, out: Any) -> None:
    """A part is over. Add sums up in a tree: those of parts 2 k and 2 k + 1, then those of four parts, and so on. The
    thread that ends the second of two sums adds them, so no thread waits, and the order of the sums does not depend on
    them."""
    span = 1
    while span < len(ended):
        first = part - part % (2 * span)
        second = first + span
        if second < len(ended):
            if count_on(ended[second]) == 0:
                return
            for row in range(out.total.shape[1]):
                _move(out.total[second, row], out.total[first, row])
            _move(out.layer_total[second], out.layer_total[first])
        part, span = first, 2 * span


@jit
def _move(values: Any, to: Any) -> None:
    """Add values to others; they are 0 then."""
    for k in range(len(values)):
        to[k] += values[k]
        values[k] = 0


@jit
def fetch_row(table: Any, row: int) -> None:
    """Begin to load a row of a table."""
    for column in range(0, table.shape[1], LINE):
        fetch(table, row, column)


@jit
def even(count: int, most: int) -> int:
    """The size of parts, about the same for all, of at most `most`."""
    parts = max(1, (count + most - 1) // most)
    return max(1, (count + parts - 1) // parts)


@jit
def bits(key: Any, draw: Any) -> Any:
    """`streams.bits`, for one draw."""
    z = draw * _GOLDEN + key
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@jit
def exp(x: Any) -> Any:
    """e^x of x <= 0, as 2^n 2^f with a polynomial for 2^f; relative error 2e-7 at -1, 4e-6 at -86. A call of `math.exp`
    would keep the compiler from taking many x at once."""
    y = max(x, np.float32(-87.0)) * np.float32(1.4426950408889634)
    n = _whole(y)
    f, power = y - n, np.int32((np.int32(n) + 127) << 23).view(np.float32)
    p = np.float32(1.5403530e-4) * f + np.float32(1.3333558e-3)
    p = (p * f + np.float32(9.6181291e-3)) * f + np.float32(5.5504109e-2)
    p = (p * f + np.float32(2.4022651e-1)) * f + np.float32(6.9314718e-1)
    return (p * f + np.float32(1.0)) * power


@exact
def _whole(y: Any) -> Any:
    """The whole number next to y, if it has at most 22 bits: sums with 1.5 2^23 are rounded to whole numbers. `floor`
    would take a detour by numbers of 64 bits."""
    return (y + _WHOLE) - _WHOLE


@jit
def log1p(x: Any) -> Any:
    """log(1 + x) of 0 <= x <= 1, by a polynomial for the same reason; relative error 4e-7."""
    p = np.float32(-8.5746758e-3) * x + np.float32(4.4214193e-2)
    p = (p * x + np.float32(-1.0785368e-1)) * x + np.float32(1.7757024e-1)
    p = (p * x + np.float32(-2.4499612e-1)) * x + np.float32(3.3276176e-1)
    return ((p * x + np.float32(-4.9997449e-1)) * x + np.float32(9.9999982e-1)) * x


@jit
def log(x: Any) -> Any:
    """log(x) of x > 0: with x = 2^n (1 + f) and 1 + f near 1, n log(2) and a polynomial (Moshier's in Cephes) for
    log(1 + f), for the same reason; relative error 1.2e-7 from 2^-16 to 1."""
    whole = np.float32(x).view(np.int32)
    n = np.int32(np.int32(whole - _ROOT) >> np.int32(23))
    f = np.int32(whole - np.int32(n << np.int32(23))).view(np.float32) - np.float32(1.0)
    p = np.float32(7.0376836e-2) * f + np.float32(-1.1514610e-1)
    p = (p * f + np.float32(1.1676999e-1)) * f + np.float32(-1.2420141e-1)
    p = (p * f + np.float32(1.4249323e-1)) * f + np.float32(-1.6668058e-1)
    p = (p * f + np.float32(2.0000715e-1)) * f + np.float32(-2.4999994e-1)
    p = (p * f + np.float32(3.3333331e-1)) * f + np.float32(-0.5)
    return p * f * f + f + np.float32(n) * np.float32(0.69314718)


@jit
def sigmoid(z: Any, e: Any) -> Any:
    """sigma(z), of which e = exp(-|z|) is known."""
    inside = np.float32(1.0) / (np.float32(1.0) + e)
    return inside if z > 0 else e * inside


@jit
def list_open(gaps: Any, n_items: int, open_items: Any) -> None:
    """Write the open items in order. The k-th closed one is gaps[k] + k."""
    rank = 0
    for k in range(len(gaps) + 1):
        end = gaps[k] if k < len(gaps) else n_items - k  # those between the closed items k - 1 and k
        for r in range(rank, end):
            open_items[r] = r + k
        rank = end


@jit
def find_open(gaps: Any, n_items: int, ranks: Any, counts: Any) -> None:
    """From ranks among the open items to the items: rank + #{k : gaps[k] <= rank}. Items are cut into blocks, about
    four for each closed one, and `counts` [n_items + 2] says how many gaps lie before each block."""
    shift = 0
    while n_items >> shift > 4 * len(gaps) + 4:
        shift += 1
    blocks = (n_items >> shift) + 1
    counts[: blocks + 1] = 0
    for k in range(len(gaps)):
        counts[(gaps[k] >> shift) + 1] += 1
    for block in range(blocks):
        counts[block + 1] += counts[block]
    for slot in range(len(ranks)):
        rank = ranks[slot]
        k = counts[rank >> shift]
        while k < len(gaps) and gaps[k] <= rank:
            k += 1
        ranks[slot] = rank + k


@jit
def draw(positives: Any, gaps: Any, n_items: int, key: Any, negatives: int, items: Any, open_items: Any) -> int:
    """Each positive followed by its negatives, into `items`; returns the number of samples."""
    n_open = n_items - len(gaps)
    each = negatives if n_open > 0 else 0
    ranks = items[len(positives) : (1 + each) * len(positives)]  # read before what is written comes that far
    for slot in range(len(ranks)):
        random = bits(key, _NEGATIVES + np.uint64(slot)) >> np.uint64(32)
        ranks[slot] = np.int32((random * np.uint64(n_open)) >> np.uint64(32))
    if len(ranks) * 24 > n_items:  # listing all open items once costs less than looking for each
        list_open(gaps, n_items, open_items)
        for slot in range(len(ranks)):
            ranks[slot] = open_items[ranks[slot]]
    else:
        find_open(gaps, n_items, ranks, open_items)
    count, slot = 0, 0
    for positive in positives:
        items[count] = positive
        count += 1
        for _ in range(each):
            items[count] = ranks[slot]
            slot += 1
            count += 1
    return count


@jit
def assign(slot_of: Any, ids: Any, drawn: Any) -> Any:
    """A row for each item drawn, in the order of drawing; `drawn` then holds rows. Returns the number of rows. The code
    does not branch on whether an item is new: the processor would guess wrong half of the time."""
    held = np.int32(0)
    for sample in range(len(drawn)):
        item = drawn[sample]
        slot = slot_of[item]
        new = slot < 0
        ids[held] = item
        slot = held if new else slot
        slot_of[item] = slot
        drawn[sample] = slot
        held += np.int32(new)
    return held


@jit
def draw_rows(samples: Any, histories: Any, user: int, key: Any, negatives: int) -> Any:
    """Draw a device's samples and give each of their items a row. Returns the number of rows, the number of samples,
    and the stride at which positives come among the samples."""
    positives = histories.train[histories.ptr[user] : histories.ptr[user + 1]]
    gaps = histories.gaps[histories.closed_ptr[user] : histories.closed_ptr[user + 1]]
    n_items = len(samples.slot_of)
    count = draw(positives, gaps, n_items, key, negatives, samples.drawn, samples.open_items)
    held = assign(samples.slot_of, samples.ids, samples.drawn[:count])
    return held, count, 1 + negatives if len(gaps) < n_items else 1


@jit
def emphasise(emphasis: Any, user: int, slot_of: Any, held: int) -> None:
    """The weights of a device's rows; nothing where `emphasis` is None."""
    if emphasis is not None:
        items = emphasis.items[emphasis.ptr[user] : emphasis.ptr[user + 1]]
        weights, of_row = emphasis.weights[: len(items)], emphasis.of_row
        total = np.float32(0.0)
        for age in range(len(weights)):
            total += weights[age]
        scale = np.float32(len(items)) / total
        for row in range(held):
            of_row[row] = 1
        for place in range(len(items)):
            of_row[slot_of[items[place]]] = scale * weights[len(items) - 1 - place]


@jit
def release(samples: Any, held: int) -> None:
    """No item has a row any more."""
    for row in range(held):
        samples.slot_of[samples.ids[row]] = -1


@jit
def copy(values: Any, out: Any) -> None:
    for k in range(len(out)):
        out[k] = values[k]


@jit
def look_up(table: Any, rows: Any, out: Any) -> None:
    """Copy these rows of a table."""
    last, dim = len(rows) - 1, out.shape[1]
    whole = dim - dim % LINE
    for i in range(len(rows)):
        row, later = rows[i], rows[min(i + AHEAD, last)]
        for k in range(0, whole, LINE):
            fetch(table, later, k)
            write(out, i, k, read(table, row, k))
        for k in range(whole, dim):
            out[i, k] = table[row, k]
        if whole < dim:
            fetch(table, later, whole)


@jit
def shuffled(key: Any, epoch: int, count: int, sorting: Any) -> None:
    """Positions 0..count-1 by random key, ties by position (`Samples.order`). Keys are spread evenly: their first bits
    say nearly where each belongs, and insertion puts the few right that share them."""
    order, keys, spare, spare_keys, bins = sorting
    base = _SHUFFLE + (np.uint64(epoch) << np.uint64(32))
    digits = 0
    while digits < DIGIT and (1 << digits) < 2 * count:
        digits += 1
    shift, starts = 31 - digits, bins[: 1 << digits]
    starts.fill(0)
    for position in range(count):
        keys[position] = np.int32(bits(key, base + np.uint64(position)) >> np.uint64(33))
    for position in range(count):
        starts[keys[position] >> shift] += 1
    total = 0
    for digit in range(len(starts)):
        here = starts[digit]
        starts[digit] = total
        total += here
    for position in range(count):
        digit = keys[position] >> shift
        to = starts[digit]
        starts[digit] = to + 1
        spare[to] = position
        spare_keys[to] = keys[position]
    for position in range(count):
        to, own = position, spare_keys[position]
        while to > 0 and keys[to - 1] > own:
            keys[to], order[to] = keys[to - 1], order[to - 1]
            to -= 1
        keys[to], order[to] = own, spare[position]


@jit
def clear(seen: Any, rows: Any) -> None:
    """Rows are no longer seen."""
    for i in range(len(rows)):
        seen[rows[i]] = -1


@jit
def collect(slots: Any, weight: Any, count: int, seen: Any, rows: Any, weights: Any) -> int:
    """Add the samples of a batch, each of this weight, to the `count` distinct rows collected so far; returns how many
    there are then. `seen` [rows of the device] is -1 for those that are not among them."""
    for slot in slots:
        if seen[slot] < 0:
            seen[slot] = count
            rows[count] = slot
            weights[count] = 0
            count += 1
        weights[seen[slot]] += weight
    return count


@jit
def distinct(slots: Any, seen: Any, rows: Any, times: Any) -> Any:
    """The distinct rows of a batch and how often it holds each; returns how many. `seen` is all -1 between calls."""
    count = collect(slots, 1, 0, seen, rows, times)
    clear(seen, rows[:count])
    return count


@jit
def laplace(values: Any, ids: Any, key: Any, place: int, noise: Any) -> None:
    """Add a device's Laplace noise to the rows [U, width] of items `ids`, as `stages.noise.drawn` has it for what is
    the place-th part of an update. Some rows at a time, or a part of a long row: short loops would leave the
    processor's wide registers empty."""
    random, drawn, levels = noise.random, noise.drawn, noise.random.view(np.int16)
    width, first = values.shape[1], _LAPLACE + (np.uint64(place) << np.uint64(36))
    words = max(1, (width + 3) // 4)
    most = min(words, _WORDS)
    some = _WORDS // most
    for start in range(0, len(values), some):
        count = min(some, len(values) - start)
        for begin in range(0, words, most):
            size = min(most, words - begin)
            for row in range(count):
                draw = first + np.uint64(ids[start + row]) * np.uint64(words) + np.uint64(begin)
                for word in range(size):
                    random[row * size + word] = bits(key, draw + np.uint64(word))
            for k in range(4 * size * count):
                x = np.float32(2.0) * np.float32(levels[k]) + np.float32(1.0)
                length = -log(np.float32(1.0) - abs(x) * np.float32(1.0 / 0x10000))
                drawn[k] = noise.scale * (length if x > 0 else -length)
            for row in range(count):
                out = values[start + row, 4 * begin : min(width, 4 * (begin + size))]
                for k in range(len(out)):
                    out[k] += drawn[4 * size * row + k]


@jit
def send(ids: Any, table: Any, shared: Any, total: Any, sent: Any) -> None:
    """Add the changes of a device's rows to the total. `sent`: rows held, rows changed, values changed. They are
    written once: other threads write to the same line of memory."""
    rows: Any = 0
    values: Any = 0
    last, dim = len(table) - 1, table.shape[1]
    whole = dim - dim % LINE
    for row in range(len(table)):
        item, later, changed = ids[row], ids[min(row + AHEAD, last)], 0
        for k in range(0, whole, LINE):
            fetch(total, later, k)
            fetch(shared, later, k)
            change = minus(read(table, row, k), read(shared, item, k))
            write(total, item, k, plus(read(total, item, k), change))
            changed += filled(change)
        for k in range(whole, dim):
            rest = table[row, k] - shared[item, k]
            total[item, k] += rest
            changed += rest != 0
        if whole < dim:
            fetch(total, later, whole)
            fetch(shared, later, whole)
        rows += changed > 0
        values += changed
    sent[0], sent[1], sent[2] = len(table), rows, values
