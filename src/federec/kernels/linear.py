"""The fused round of methods with a linear score, sigma(w_i . v_ij + b_i): PFedRec, FedMF, with or without dual
personalisation. One device at a time per thread, its rows in cache from drawing to scoring."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from federec.kernels.cpu import DIGIT, draw, jit, parallel, shuffled


@jit
def _logits(rows: Any, slots: Any, start: int, stop: int, w: Any, b: Any, out: Any) -> None:
    for sample in range(start, stop):
        row = slots[sample]
        z = b
        for k in range(len(w)):
            z += w[k] * rows[row, k]
        out[sample - start] = z


@jit
def _errors(z: Any, order: Any, start: int, stride: int, out: Any) -> Any:
    """(sigma(z) - y) / n into `out`; returns the mean cross-entropy. A sample is a positive if its position is a
    multiple of `stride`. Probabilities are multiplied and the logarithm taken now and then."""
    n = len(z)
    share, total, product = np.float32(1.0 / n), 0.0, 1.0
    for i in range(n):
        e = math.exp(-abs(z[i]))
        inside = np.float32(1.0) / (np.float32(1.0) + e)
        p = inside if z[i] >= 0 else np.float32(1.0) - inside
        if order[start + i] % stride == 0:
            out[i] = (p - np.float32(1.0)) * share
            product *= max(np.float64(p), 1e-38)
        else:
            out[i] = p * share
            product *= max(np.float64(inside if z[i] < 0 else np.float32(1.0) - inside), 1e-38)
        if i & 7 == 7:
            total -= math.log(product)
            product = 1.0
    return (total - math.log(product)) * share


@jit
def _device(
    table: Any, w: Any, b: Any, slots: Any, order: Any, count: int, stride: int, batch: int, rates: Any,
    alternate: bool, bias: bool, gradient: Any, z: Any, error: Any,
) -> tuple[float, int]:  # fmt: skip
    """One epoch on one device, in place; returns the sum of its losses and how many."""
    losses, times = 0.0, 0
    for start in range(0, count, batch):
        stop = min(count, start + batch)
        n = stop - start
        _logits(table, slots, start, stop, w, b[0], z)
        losses += _errors(z[:n], order, start, stride, error)
        times += 1
        gradient[:] = 0
        total = np.float32(0.0)
        for i in range(n):
            total += error[i]
            for k in range(len(w)):
                gradient[k] += error[i] * table[slots[start + i], k]
        if not alternate:  # rows step along the old w
            for i in range(n):
                scale = rates[1] * error[i]
                for k in range(len(w)):
                    table[slots[start + i], k] -= scale * w[k]
        for k in range(len(w)):
            w[k] -= rates[0] * gradient[k]
        if bias:
            b[0] -= rates[0] * total
        if alternate:  # rows step after, with the new w
            _logits(table, slots, start, stop, w, b[0], z)
            losses += _errors(z[:n], order, start, stride, error)
            times += 1
            for i in range(n):
                scale = rates[1] * error[i]
                for k in range(len(w)):
                    table[slots[start + i], k] -= scale * w[k]
    return losses, times


@parallel
def linear_round(
    shared: Any, weights: Any, biases: Any, users: Any, ptr: Any, train: Any, closed_ptr: Any, gaps: Any, keys: Any,
    negatives: int, batch: int, epochs: int, rates: Any, alternate: bool, bias: bool, ask: Any, scores: Any, total: Any,
    loss: Any, touched: Any,
) -> None:  # fmt: skip
    """One round of `users`: private weights step in place, changes of rows are summed into `total` [threads, M, d], the
    items `ask` [users, K] are scored with each device's own rows into `scores`."""
    n_items, dim = shared.shape
    threads = len(total)
    longest = 0
    for user in users:
        longest = max(longest, (ptr[user + 1] - ptr[user]) * (1 + negatives))
    for thread in numba.prange(threads):
        slot_of = np.full(n_items, -1, np.int32)
        open_items, ids = np.empty(n_items, np.int32), np.empty(min(longest, n_items), np.int32)
        items, slots, order = np.empty(longest, np.int32), np.empty(longest, np.int32), np.empty(longest, np.int32)
        spare, sort, spare_sort = np.empty(longest, np.int32), np.empty(longest, np.int32), np.empty(longest, np.int32)
        histogram = np.empty(1 << DIGIT, np.int32)
        table = np.empty((len(ids), dim), np.float32)
        gradient, z, error = np.empty(dim, np.float32), np.empty(batch, np.float32), np.empty(batch, np.float32)
        b = np.zeros(1, np.float32)
        for index in range(thread, len(users), threads):
            user = users[index]
            positives = train[ptr[user] : ptr[user + 1]]
            count = draw(
                positives,
                gaps[closed_ptr[user] : closed_ptr[user + 1]],
                n_items,
                keys[index],
                negatives,
                items,
                open_items,
            )
            stride = count // len(positives)
            held = 0
            for sample in range(count):
                item = items[sample]
                if slot_of[item] < 0:
                    slot_of[item] = held
                    ids[held] = item
                    table[held] = shared[item]
                    held += 1
            w = weights[user]
            b[0] = biases[user]
            for epoch in range(epochs):
                shuffled(keys[index], epoch, count, order, sort, spare, spare_sort, histogram)
                for sample in range(count):
                    slots[sample] = slot_of[items[order[sample]]]
                losses, times = _device(
                    table, w, b, slots, order, count, stride, batch, rates, alternate, bias, gradient, z, error
                )
                loss[thread, 0] += losses
                loss[thread, 1] += times
            biases[user] = b[0]
            for place in range(ask.shape[1]):
                item = ask[index, place]
                if item >= 0:
                    row = slot_of[item]
                    value = b[0]
                    for k in range(dim):
                        value += w[k] * (table[row, k] if row >= 0 else shared[item, k])
                    scores[index, place] = value
            for row in range(held):
                item = ids[row]
                slot_of[item] = -1
                for k in range(dim):
                    total[thread, item, k] += table[row, k] - shared[item, k]
            touched[index] = held


@parallel
def linear_scores(shared: Any, weights: Any, biases: Any, users: Any, ask: Any, scores: Any) -> None:
    """Scores of the items `ask` [users, K] with the server's rows."""
    for index in numba.prange(len(users)):
        w, b = weights[users[index]], biases[users[index]]
        for place in range(ask.shape[1]):
            value = b
            for k in range(len(w)):
                value += w[k] * shared[ask[index, place], k]
            scores[index, place] = value
