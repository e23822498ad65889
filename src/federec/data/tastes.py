"""`tastes`: the built-in data set, nothing to download, with the size and skew of MovieLens-100K.

    popularity     p_i = exp(-SKEW r_i / items) / (r_i + OFFSET)          r_i: the item's rank, a random order
    item           q_i = LEAD e_lead(i) + (1 - LEAD) e_side(i)            over the tastes on a ring
    user           m_us = HOME e_home + (1 - HOME) ((1 - s) e_early + s e_late)    in phase s = 0, 1/3, 2/3, 1
    choice         P(i | u, s) ~ p_i ** (1 - FADE s) exp(PULL m_us . q_i)          without replacement

`late` is a few steps after `early` on the ring: a user's newest items differ from the oldest, yet can be predicted
from them, and popular items come first. A phase is a session in time: weeks between sessions, seconds within.
Choosing is an exponential race: item i finishes at -log(U) / P(i), and the first to finish are chosen. Each
item is also assigned to one user, so that none is missing.

Every number comes from `federec.streams`: the set is a pure function of its arguments.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from federec import streams
from federec.data.interactions import Interactions
from federec.errors import UserError

# Each taste as a mood and as a genre; a title is the item's side taste, its leading taste and its id.
NAMES = (
    *(("Merry", "Comedy"), ("Dusty", "Western"), ("Tense", "Thriller"), ("Tender", "Romance")),
    *(("Quiet", "Mystery"), ("Strange", "Fantasy"), ("Solemn", "Drama"), ("Lively", "Musical")),
    *(("Grand", "Epic"), ("Bold", "Adventure"), ("Dark", "Noir"), ("Bright", "Cartoon")),
)
TASTES = len(NAMES)

FEWEST = 20  # interactions of a user, at least
ACTIVITY, TAIL = 1.4, 0.9937  # interactions above that are Weibull: the power, and where the tail is cut
OFFSET, SKEW = 20.0, 6.5  # popularity over rank: how flat its head is, how steep its tail
LEAD = 0.75  # fraction of the leading taste in an item
HOME = 0.25  # fraction of the taste that a user always keeps
STRIDE = 3  # `late` is 1 to STRIDE steps after `early`
PULL = 8.25  # how much more likely taste makes an item, as a logarithm
FADE = 0.35  # how much less popularity counts in the last phase than in the first
PHASES = 4  # of a user's history
EPOCH, SPAN = 1_600_000_000, 10_000_000  # users start within SPAN seconds of EPOCH
GAP = 30 * 86_400  # between sessions, at most
TIED, STEP = 0.3, 40  # fraction of rows in the same second as the row before; the others are 1 to STEP seconds later
RATED = (0.06, 0.17, 0.44, 0.78)  # fractions of rows rated at most 1, 2, 3, 4 stars
WHIM = 0.25  # noise of a rating beside the affinity m . q

# Drawn before any round of a run, one kind of stream per user, item and row.
_USER, _ITEM, _ROW = -1, -2, -3

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def generate(users: int = 943, items: int = 1682, interactions: int = 100_000, seed: int = 0) -> Interactions:
    """The data set; with other arguments a similar one, of another size or another seed."""
    if users < 1 or not max(FEWEST * users, 5 * items) <= interactions <= users * (items // 2):
        raise UserError(
            f"{interactions} interactions do not suit {users} users and {items} items: tastes needs at least "
            f"{FEWEST} per user and 5 per item, and at most half of all pairs"
        )
    lead = streams.below(_bits(seed, _ITEM, items, 0), TASTES)
    side = (lead + 1 + streams.below(_bits(seed, _ITEM, items, 1), TASTES - 1)) % TASTES
    user, item, phase, affinity = _choose(_activity(users, items, interactions, seed), lead, side, seed)
    time, rating = _clock(user, phase, seed), _stars(affinity, seed)
    order = np.argsort(time, kind="stable")
    user, item, rating, time = user[order] + 1, item[order] + 1, rating[order], time[order]
    rows = zip(user.tolist(), item.tolist(), rating.tolist(), time.tolist(), strict=True)
    text = "user,item,rating,timestamp\n" + "".join(f"{u},{i},{r},{t}\n" for u, i, r, t in rows)
    titles = {str(i + 1): f"{NAMES[side[i]][0]} {NAMES[lead[i]][1]} {i + 1}" for i in range(items)}
    (user_codes, user_ids), (item_codes, item_ids) = _encode(user), _encode(item)
    return Interactions(
        name="tastes",
        users=user_codes,
        items=item_codes,
        user_ids=user_ids,
        item_ids=item_ids,
        times=time.astype(np.float64),
        ratings=rating.astype(np.float32),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        source_rows=interactions,
        titles=titles,
        columns={role: role for role in ("user", "item", "rating", "timestamp")},
    )


def _bits(seed: int, kind: int, count: int, draw: int) -> Any:
    """64 random bits for each of `count` users, items or rows."""
    key = streams.keys(seed, kind, np.arange(count, dtype=np.int64))
    return streams.bits(key, np.array([draw], dtype=np.int64))


def _activity(users: int, items: int, interactions: int, seed: int) -> Ints:
    """Interactions of each user: FEWEST plus quantiles of a cut Weibull scaled to the total, shuffled."""
    most = items // 2
    position = np.argsort(_bits(seed, _USER, users, 0), kind="stable")
    shape = (-np.log(1.0 - TAIL * (position + 0.5) / users)) ** ACTIVITY
    low, high = 0.0, interactions / float(shape.min())
    for _ in range(100):  # the largest scale whose whole numbers stay within the total
        scale = (low + high) / 2
        within = np.minimum(FEWEST + scale * shape, most).astype(np.int64).sum() <= interactions
        low, high = (scale, high) if within else (low, scale)
    count: Ints = np.minimum(FEWEST + low * shape, most).astype(np.int64)
    count[np.flatnonzero(count < most)[: interactions - int(count.sum())]] += 1
    return count


def _choose(count: Ints, lead: Ints, side: Ints, seed: int) -> tuple[Ints, Ints, Ints, Floats]:
    """User, item, phase and affinity of every row: user by user, in the order of choice."""
    users, items = len(count), len(lead)
    rank = np.argsort(_bits(seed, _ITEM, items, 2), kind="stable")
    popularity = np.exp(-SKEW * rank / items) / (rank + OFFSET)
    spaced = np.arange(items, dtype=np.int64) * count.sum() // items
    finder = np.searchsorted(np.cumsum(count), spaced, side="right")
    home, early = (streams.below(_bits(seed, _USER, users, draw), TASTES) for draw in (1, 2))
    late = (early + 1 + streams.below(_bits(seed, _USER, users, 3), STRIDE)) % TASTES
    key = streams.keys(seed, _USER, np.arange(users, dtype=np.int64))
    draws = (1 << 40) + np.arange(PHASES * items, dtype=np.int64).reshape(PHASES, items)
    end = count[:, None] * np.arange(PHASES + 1) // PHASES
    chosen, affinities = [], []
    for u in range(users):
        pace = -np.log(streams.unit(streams.bits(key[u], draws)) + 2.0**-25)
        for phase in range(PHASES):
            s = phase / (PHASES - 1)
            taste = np.zeros(TASTES)
            np.add.at(taste, [home[u], early[u], late[u]], [HOME, (1 - HOME) * (1 - s), (1 - HOME) * s])
            affinity = LEAD * taste[lead] + (1 - LEAD) * taste[side]
            finish = pace[phase] / (popularity ** (1 - FADE * s) * np.exp(PULL * affinity))
            if phase == 0:
                finish[finder == u] = 0.0
            first = np.argsort(finish, kind="stable")[: end[u, phase + 1] - end[u, phase]]
            pace[:, first] = np.inf
            chosen.append(first)
            affinities.append(affinity[first])
    rows = np.diff(end).ravel()
    user, phases = np.divmod(np.repeat(np.arange(users * PHASES), rows), PHASES)
    return user, np.concatenate(chosen), phases, np.concatenate(affinities)


def _clock(user: Ints, phase: Ints, seed: int) -> Ints:
    """Times of all rows in whole seconds, rising within a user."""
    rows = len(user)
    wait = 1 + streams.below(_bits(seed, _ROW, rows, 0), STEP)
    wait[streams.unit(_bits(seed, _ROW, rows, 1)) < TIED] = 0
    session = np.flatnonzero(np.diff(phase, prepend=-1))
    wait[session] = STEP + streams.below(_bits(seed, _ROW, rows, 2)[session], GAP)
    start = np.flatnonzero(np.diff(user, prepend=-1))
    wait[start] = EPOCH + streams.below(_bits(seed, _ROW, rows, 3)[start], SPAN)
    passed = np.cumsum(wait)
    elapsed: Ints = passed - (passed - wait)[start][user]
    return elapsed


def _stars(affinity: Floats, seed: int) -> Ints:
    """Ratings 1 to 5, distributed as in MovieLens, by affinity and whim."""
    liking = affinity + WHIM * streams.unit(_bits(seed, _ROW, len(affinity), 4))
    position = np.argsort(np.argsort(liking, kind="stable"), kind="stable")
    return 1 + np.searchsorted(np.array(RATED), (position + 0.5) / len(position)).astype(np.int64)


def _encode(labels: Ints) -> tuple[NDArray[np.int32], Ints]:
    """Codes in order of first appearance, and the label of each code."""
    ids, first, code = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    return np.argsort(order, kind="stable").astype(np.int32)[code], ids[order]
