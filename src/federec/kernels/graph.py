"""CPU kernel for graph attention on devices, as `mathematics.attention` has it: one gradient of a device's loss,
clipped, noised and hidden among pseudo rows on its way into the sum.

With G = W W', s = W a and t = W a' no device multiplies by W on its way forward. For its items j with rows v_j, peers
n_jk and the user's vector u,
    m_j = sum_k a_jk n_jk,    a_j = softmax_k LeakyReLU(s . v_j + t . n_jk)           n_j0 = v_j
    x = sum_j b_j m_j,        b = softmax_j LeakyReLU(s . u + t . m_j)                m_0 = u
    r_k = x . y_k,            y_k = v_k G                                             for an item that is not the user's
    r_j = (x . y_j - b_j o_j) / (1 - b_j),    o_j = m_j . y_j                         for one that is
y, s . v, t . v and t . n are the same on all devices, and computed once. On the way back
    dW = (dG + dG') W + ds x a + dt x a'                                              x: outer product
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from federec import streams
from federec.kernels.compiling import jit, kernel
from federec.kernels.cpu import bits, draw, emphasise, exp, floats, integers, log1p, merge, sigmoid
from federec.kernels.machine import count_on
from federec.kernels.matrices import multiply

_MATCHING = np.uint64(streams.MATCHING)
_COVER = np.uint64(streams.COVER)
_LIKE = np.uint64(streams.COVER + (1 << 32))
_NOISE = np.uint64(streams.NOISE)
_SLOPE = np.float32(0.2)  # of LeakyReLU below 0


class Server(NamedTuple):
    """What the server and the matching server give out, and what follows from it for all devices."""

    rows: Any
    """[M, d] v."""
    vectors: Any
    """[N, d] of the anonymous users, n."""
    weight: Any
    start: Any
    end: Any
    """W, a and a'."""
    square: Any
    """G."""
    outward: Any
    inward: Any
    """s and t."""
    known: Any
    """[M, d] y."""
    row_start: Any
    row_end: Any
    vector_end: Any
    """s . v and t . v of all items, t . n of all users."""


class Graph(NamedTuple):
    """Who has which items: devices' distinct items, and all users of each item, by their numbers."""

    neighbours: int
    """Peers of an item at most."""
    ptr: Any
    items: Any
    user_ptr: Any
    users: Any


class Plan(NamedTuple):
    """Settings of a round."""

    negatives: int
    pseudo: int
    """Pseudo items that a device draws."""
    clip: np.float32
    noise: np.float32
    """Scale; 0 means that nothing is clipped either."""
    quantiles: Any


class Attention(NamedTuple):
    """What a thread keeps of the graph of the device at hand."""

    peers: Any
    """[L, K] of each item."""
    counts: Any
    """[L] how many there are."""
    share: Any
    """[L, 1 + K] a."""
    slope: Any
    """[L, 1 + K] of LeakyReLU."""
    mixed: Any
    """[L, d] m."""
    user_share: Any
    """[1 + L] b."""
    user_slope: Any
    result: Any
    """[d] x."""


class Workspace(NamedTuple):
    """What a thread works with."""

    attention: Attention
    slot_of: Any
    """[M] an item's row in the device's tables; -1: it has none."""
    covered: Any
    """[M] whether an item is one of the device's pseudo items."""
    open_items: Any
    ids: Any
    drawn: Any
    node: Any
    """[rows] the place of a row's item in the graph, counted from 1; 0: it is not there."""
    pull: Any
    """[rows] weights of samples, then derivatives of the loss with respect to x . y."""
    table: Any
    """[rows, d] gradients of item rows."""
    user_error: Any
    """[1 + L] gradient of b."""
    own_error: Any
    """[L] gradient of o."""
    error: Any
    """[1 + K] gradient of one item's a."""
    own: Any
    scaled: Any
    product: Any
    """[L, d]."""
    vectors: Any
    """[6, d] sums over rows."""
    part: Any
    turned: Any
    """[d, d]."""
    layers: Any
    """[d d + 2 d] gradients of W, a and a'."""
    random: Any


def make_attention(longest: int, neighbours: int, dim: int) -> Attention:
    """For devices with at most `longest` items."""
    wide = (longest, 1 + neighbours)
    return Attention(
        integers(longest, max(1, neighbours)), integers(longest), floats(*wide), floats(*wide), floats(longest, dim),
        floats(1 + longest), floats(1 + longest), floats(dim),
    )  # fmt: skip


def make_workspace(n_items: int, most: int, longest: int, neighbours: int, dim: int) -> Workspace:
    """For devices with at most `most` samples and `longest` items."""
    rows = min(most, n_items)
    return Workspace(
        attention=make_attention(longest, neighbours, dim),
        slot_of=np.full(n_items, -1, np.int32),
        covered=np.zeros(n_items, np.bool_),
        open_items=integers(n_items + 2),
        ids=integers(rows),
        drawn=integers(most),
        node=integers(rows),
        pull=floats(rows),
        table=floats(rows, dim),
        user_error=floats(1 + longest),
        own_error=floats(longest),
        error=floats(1 + neighbours),
        own=floats(longest, dim),
        scaled=floats(longest, dim),
        product=floats(longest, dim),
        vectors=floats(6, dim),
        part=floats(dim, dim),
        turned=floats(dim, dim),
        layers=floats(dim * dim + 2 * dim),
        random=np.zeros((dim * dim + 3) // 4, np.uint64),
    )


@jit
def _dot(x: Any, y: Any) -> Any:
    total = np.float32(0.0)
    for k in range(len(x)):
        total += x[k] * y[k]
    return total


@jit
def _add(total: Any, factor: Any, values: Any) -> None:
    for k in range(len(total)):
        total[k] += factor * values[k]


@jit
def _softmax(values: Any, slope: Any) -> None:
    """LeakyReLU and softmax in place; `slope` becomes that of LeakyReLU."""
    most, total = np.float32(-np.inf), np.float32(0.0)
    for k in range(len(values)):
        slope[k] = np.float32(1.0) if values[k] > 0 else _SLOPE
        values[k] *= slope[k]
        most = max(most, values[k])
    for k in range(len(values)):
        values[k] = exp(values[k] - most)
        total += values[k]
    for k in range(len(values)):
        values[k] /= total


@jit
def _back(share: Any, slope: Any, error: Any) -> Any:
    """Gradient of a softmax in `error`, which becomes that of what LeakyReLU was given; returns its sum."""
    mean, total = _dot(share, error), np.float32(0.0)
    for k in range(len(share)):
        error[k] = share[k] * (error[k] - mean) * slope[k]
        total += error[k]
    return total


@jit
def _peers(graph: Any, user: int, item: int, key: Any, out: Any) -> int:
    """`History.peers` of one item; returns how many there are."""
    users = graph.users[graph.user_ptr[item] : graph.user_ptr[item + 1]]
    others = len(users) - 1
    if others < 1 or graph.neighbours == 0:
        return 0
    own = np.searchsorted(users, user)
    random = bits(key, _MATCHING + np.uint64(item)) >> np.uint64(32)
    at: Any = np.int64((random * np.uint64(others)) >> np.uint64(32))
    count: int = min(graph.neighbours, others)
    for k in range(count):
        out[k] = users[at + (at >= own)]
        at = at + 1 if at + 1 < others else 0
    return count


@jit
def _attend(server: Any, graph: Any, user: int, key: Any, vector: Any, at: Any) -> int:
    """Attention on one device; returns the number of its items."""
    items = graph.items[graph.ptr[user] : graph.ptr[user + 1]]
    outward, own = _dot(server.outward, vector), at.user_share[: 1 + len(items)]
    own[0] = outward + _dot(server.inward, vector)
    for j in range(len(items)):
        item, mixed, peers = items[j], at.mixed[j], at.peers[j]
        count = _peers(graph, user, item, key, peers)
        share = at.share[j, : 1 + count]
        share[0] = server.row_start[item] + server.row_end[item]
        for k in range(count):
            share[1 + k] = server.row_start[item] + server.vector_end[peers[k]]
        _softmax(share, at.slope[j, : 1 + count])
        reach = share[0] * server.row_end[item]
        mixed.fill(0)
        _add(mixed, share[0], server.rows[item])
        for k in range(count):
            reach += share[1 + k] * server.vector_end[peers[k]]
            _add(mixed, share[1 + k], server.vectors[peers[k]])
        own[1 + j], at.counts[j] = outward + reach, count
    _softmax(own, at.user_slope[: len(own)])
    at.result.fill(0)
    _add(at.result, own[0], vector)
    for j in range(len(items)):
        _add(at.result, own[1 + j], at.mixed[j])
    return len(items)


@jit
def _draw(work: Any, histories: Any, user: int, key: Any, plan: Any) -> int:
    """Draw a device's samples. Its rows are its items in ascending order, `pull` has the weights of their samples.
    Returns the number of rows."""
    positives = histories.train[histories.ptr[user] : histories.ptr[user + 1]]
    gaps = histories.gaps[histories.closed_ptr[user] : histories.closed_ptr[user + 1]]
    n_items, held = len(work.slot_of), 0
    count = draw(positives, gaps, n_items, key, plan.negatives, work.drawn, work.open_items)
    for sample in range(count):
        work.slot_of[work.drawn[sample]] = 0
    for item in range(n_items):
        if work.slot_of[item] >= 0:
            work.slot_of[item], work.ids[held], work.pull[held] = held, item, 0
            held += 1
    weight = np.float32(1.0) / np.float32(count)
    for sample in range(count):
        work.pull[work.slot_of[work.drawn[sample]]] += weight
    return held


@jit
def _errors(work: Any, server: Any, items: Any, held: int) -> Any:
    """The loss. `pull`, `user_error` and `own_error` become its derivatives, `vectors[0]` that with respect to x, and
    `vectors[1]` the sum of pulls times rows v."""
    at, node, loss = work.attention, work.node[:held], np.float32(0.0)
    node.fill(0)
    for j in range(len(items)):
        node[work.slot_of[items[j]]] = 1 + j
    for row in range(held):
        y = server.known[work.ids[row]]
        score, weight, j = _dot(at.result, y), work.pull[row], node[row]
        rest, own = np.float32(1.0), np.float32(0.0)
        if j > 0:
            own, share = _dot(at.mixed[j - 1], y), at.user_share[j]
            rest = np.float32(1.0) - share
            score = (score - share * own) / rest
        side = score if j == 0 else -score
        small = exp(-abs(side))
        loss += weight * (max(side, np.float32(0.0)) + log1p(small))
        error = weight * sigmoid(side, small) / rest
        if j > 0:
            error = -error
            work.user_error[j] = error * (score - own)
            work.own_error[j - 1] = -error * at.user_share[j]
        work.pull[row] = error
        _add(work.vectors[0], error, y)
        _add(work.vectors[1], error, server.rows[work.ids[row]])
    return loss


@jit
def _back_to_items(work: Any, server: Any, items: Any) -> None:
    """From the errors of m and o to item rows (`table`), s and t (`vectors[2]` and `[3]`)."""
    at, onto, mixed_error = work.attention, work.vectors[0], work.vectors[4]
    for j in range(len(items)):
        item, peers, count, own_error = items[j], at.peers[j], at.counts[j], work.own_error[j]
        v, y, row = server.rows[item], server.known[item], work.table[work.slot_of[item]]
        share, reach = at.user_share[1 + j], work.user_error[1 + j]
        for k in range(len(v)):
            mixed_error[k] = share * onto[k] + own_error * y[k] + reach * server.inward[k]
            work.scaled[j, k] = own_error * at.mixed[j, k]
            work.own[j, k] = v[k]
        error = work.error[: 1 + count]
        error[0] = _dot(mixed_error, v)
        for k in range(count):
            error[1 + k] = _dot(mixed_error, server.vectors[peers[k]])
        total = _back(at.share[j, : 1 + count], at.slope[j, : 1 + count], error)
        for k in range(len(v)):
            row[k] += at.share[j, 0] * mixed_error[k] + total * server.outward[k] + error[0] * server.inward[k]
            work.vectors[2, k] += total * v[k]
            work.vectors[3, k] += error[0] * v[k] + reach * at.mixed[j, k]
        for k in range(count):
            _add(work.vectors[3], error[1 + k], server.vectors[peers[k]])


@jit
def _back_to_layers(work: Any, server: Any, count: int) -> None:
    """From the errors of y, s and t to W, a and a' (`layers`), and from those of o to item rows (`product`)."""
    dim = len(server.square)
    multiply(work.scaled[:count], server.square, work.product[:count])
    multiply(work.own[:count].T, work.scaled[:count], work.part)
    for i in range(dim):
        _add(work.part[i], work.vectors[1, i], work.attention.result)
    for i in range(dim):
        for k in range(dim):
            work.turned[i, k] = work.part[i, k] + work.part[k, i]
    multiply(work.turned, server.weight, work.part)
    outward, inward, layers = work.vectors[2], work.vectors[3], work.layers
    start, end = layers[dim * dim : dim * dim + dim], layers[dim * dim + dim :]
    start.fill(0)
    end.fill(0)
    for i in range(dim):
        _add(start, outward[i], server.weight[i])
        _add(end, inward[i], server.weight[i])
        for k in range(dim):
            layers[i * dim + k] = work.part[i, k] + outward[i] * server.start[k] + inward[i] * server.end[k]


@jit
def _learn(work: Any, server: Any, items: Any, held: int, vector: Any, gradient: Any) -> Any:
    """One device's gradients of item rows, layers and its own vector, in closed form; returns its loss."""
    at, count = work.attention, len(items)
    work.vectors.fill(0)
    loss = _errors(work, server, items, held)
    onto, taste, own_error = work.vectors[0], work.vectors[5], work.user_error[: 1 + count]
    own_error[0] = _dot(onto, vector)
    for j in range(count):
        own_error[1 + j] += _dot(onto, at.mixed[j])
    total = _back(at.user_share[: 1 + count], at.user_slope[: 1 + count], own_error)
    for i in range(len(taste)):
        _add(taste, at.result[i], server.square[i])
    for k in range(len(gradient)):
        gradient[k] = at.user_share[0] * onto[k] + total * server.outward[k] + own_error[0] * server.inward[k]
        work.vectors[2, k] = total * vector[k]
        work.vectors[3, k] = own_error[0] * vector[k]
    for row in range(held):
        for k in range(len(taste)):
            work.table[row, k] = work.pull[row] * taste[k]
    _back_to_items(work, server, items)
    _back_to_layers(work, server, count)
    for j in range(count):
        _add(work.table[work.slot_of[items[j]]], np.float32(1.0), work.product[j])
    return loss


@jit
def _send(values: Any, place: int, row: int, key: Any, plan: Any, random: Any, total: Any) -> int:
    """Add values to the total, clipped and with noise; returns how many are not 0."""
    words, filled = (len(values) + 3) // 4, 0
    if plan.noise == 0:
        for k in range(len(values)):
            total[k] += values[k]
            filled += values[k] != 0
        return filled
    first = _NOISE + (np.uint64(place) << np.uint64(36)) + np.uint64(row) * np.uint64(words)
    for word in range(words):
        random[word] = bits(key, first + np.uint64(word))
    levels = random[:words].view(np.uint16)
    for k in range(len(values)):
        clipped = min(max(values[k], -plan.clip), plan.clip)
        sent = clipped + plan.noise * plan.quantiles[levels[k] ^ np.uint16(0x8000)]
        total[k] += sent
        filled += sent != 0
    return filled


@jit
def _send_rows(work: Any, held: int, key: Any, plan: Any, total: Any, sent: Any) -> None:
    """Send a device's rows and its pseudo rows, each of which is a copy of one of its own; no item has a row then."""
    n_items, count, rows, values = len(work.slot_of), 0, 0, 0
    for i in range(plan.pseudo):
        random = bits(key, _COVER + np.uint64(i)) >> np.uint64(32)
        work.covered[np.int64((random * np.uint64(n_items)) >> np.uint64(32))] = True
    for item in range(n_items):
        row = work.slot_of[item]
        if row < 0:
            if not work.covered[item]:
                continue
            random = bits(key, _LIKE + np.uint64(item)) >> np.uint64(32)
            row = np.int32((random * np.uint64(held)) >> np.uint64(32))
        filled = _send(work.table[row], 3, item, key, plan, work.random, total[item])
        count += 1
        rows += filled > 0
        values += filled
        work.slot_of[item] = -1
        work.covered[item] = False
    sent[0], sent[1], sent[2] = count, rows, values


@kernel
def graph_round(
    parts: Any, plan: Any, work: Any, emphasis: Any, histories: Any, graph: Any, server: Any, players: Any,
    matching: Any, vectors: Any, gradients: Any, out: Any,
) -> None:  # fmt: skip
    """The round of one thread's users. `matching`: keys by which each one's peers are drawn. `vectors` [C, d] are the
    users' own, of which `gradients` takes the gradients. The sums of what is sent and, as the last of each one's
    counts, its peers go to `out`. `emphasis`: None where all samples weigh the same."""
    dim = vectors.shape[1]
    ends = (0, dim * dim, dim * dim + dim, dim * dim + 2 * dim)
    part = count_on(parts.next)
    while part < len(parts.ptr) - 1:
        for index in range(parts.ptr[part], parts.ptr[part + 1]):
            user, key, sent = players.users[index], players.keys[index], out.sent[index]
            held = _draw(work, histories, user, key, plan)
            emphasise(emphasis, user, work.slot_of, held)
            if emphasis is not None:
                for row in range(held):
                    work.pull[row] *= emphasis.of_row[row]
            count = _attend(server, graph, user, matching[index], vectors[index], work.attention)
            items = graph.items[graph.ptr[user] : graph.ptr[user] + count]
            out.loss[part, 0] += _learn(work, server, items, held, vectors[index], gradients[index])
            out.loss[part, 1] += 1
            for layer in range(3):
                one = slice(ends[layer], ends[layer + 1])
                sent[3 + layer] = _send(work.layers[one], layer, 0, key, plan, work.random, out.layer_total[part, one])
            _send_rows(work, held, key, plan, out.total[part], sent)
            for j in range(count):
                sent[7] += work.attention.counts[j]
        merge(parts.ended, part, out)
        part = count_on(parts.next)


@kernel
def graph_results(
    parts: Any, attention: Any, graph: Any, server: Any, users: Any, matching: Any, vectors: Any, out: Any
) -> None:  # fmt: skip
    """x [C, d] of one thread's users."""
    part = count_on(parts.next)
    while part < len(parts.ptr) - 1:
        for index in range(parts.ptr[part], parts.ptr[part + 1]):
            _attend(server, graph, users[index], matching[index], vectors[index], attention)
            for k in range(out.shape[1]):
                out[index, k] = attention.result[k]
        part = count_on(parts.next)
