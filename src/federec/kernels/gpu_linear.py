"""The GPU's round of methods with a linear score, sigma(w_i . v_ij + b_i): PFedRec, FedMF, with or without dual
personalisation.

One program trains one device after the other, longest first, taken from a queue. It keeps w and b in registers and the
device's rows in a table of its own, which stays in cache. A row that a batch holds twice gets both changes by atomic
additions, and so does the sum over devices: values agree with the other engines up to the order of additions.
"""

from __future__ import annotations

import triton.language as tl

from federec.kernels.gpu import error_of, many, of_batch, report


@many
def linear_round(
    shared, weights, biases, users, first, counts, samples, order, ask, judges, scores, total, figures,
    tables, marks, errors, queue, devices, n_items, shuffled, batch, epochs, asked, rate, item_rate,
    ALTERNATE: tl.constexpr, BIAS: tl.constexpr, JUDGED: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One round of the devices: private weights step in place, changes of rows are added to `total` [M, d], the items
    `ask` [devices, K] are scored with each device's own rows into `scores`, by its own weights or those of `judges`
    [devices, DIM + 1].

    `order` [epochs, shuffled] holds the shuffled samples of the devices that have more than one batch."""
    program = tl.program_id(0).to(tl.int64)
    table = tables + program * n_items * DIM
    mark = marks + program * n_items
    error = errors + program * batch
    tile = tl.arange(0, TILE)
    k = tl.arange(0, WIDTH)
    wide = (k < DIM)[None, :]
    device = tl.atomic_add(queue, 1, sem="relaxed")
    while device < devices:
        user = tl.load(users + device)
        start = tl.load(first + device)
        count = tl.load(counts + device)
        w = tl.load(weights + user * DIM + k, mask=k < DIM, other=0.0)
        b = tl.load(biases + user)
        held = 0
        for at in range(0, count, TILE):  # fetch the rows
            real = at + tile < count
            item = tl.load(samples + start + at + tile, mask=real, other=0) >> 1
            before = tl.atomic_xchg(mark + item, device + 1, mask=real, sem="relaxed")
            held += tl.sum((real & (before != device + 1)).to(tl.int32), 0)
            there = real[:, None] & wide
            place = item[:, None] * DIM + k[None, :]
            tl.store(table + place, tl.load(shared + place, mask=there, other=0.0), mask=there)
        tl.debug_barrier()
        loss = 0.0
        steps = 0
        shuffle = order
        for _ in range(epochs):
            for begin in range(0, count, batch):
                size = tl.minimum(count - begin, batch)
                gradient = tl.zeros((WIDTH,), tl.float32)
                slope = 0.0
                for at in range(0, size, TILE):
                    real = at + tile < size
                    sample = of_batch(samples, shuffle, start + begin + at + tile, real, count > batch)
                    place = (sample >> 1)[:, None] * DIM + k[None, :]
                    rows = tl.load(table + place, mask=real[:, None] & wide, other=0.0)
                    z = tl.sum(rows * w[None, :], 1) + b
                    e, parts = error_of(z, (sample & 1).to(tl.float32), real, size)
                    loss += tl.sum(parts, 0)
                    gradient += tl.sum(rows * e[:, None], 0)
                    slope += tl.sum(e, 0)
                    if not ALTERNATE:
                        tl.store(error + at + tile, e, mask=real)
                steps += 1
                along = w
                w -= rate * gradient
                if BIAS:
                    b -= rate * slope
                if ALTERNATE:  # rows step after, with the new w
                    steps += 1
                    along = w
                    for at in range(0, size, TILE):
                        real = at + tile < size
                        sample = of_batch(samples, shuffle, start + begin + at + tile, real, count > batch)
                        place = (sample >> 1)[:, None] * DIM + k[None, :]
                        rows = tl.load(table + place, mask=real[:, None] & wide, other=0.0)
                        z = tl.sum(rows * w[None, :], 1) + b
                        e, parts = error_of(z, (sample & 1).to(tl.float32), real, size)
                        loss += tl.sum(parts, 0)
                        tl.store(error + at + tile, e, mask=real)
                tl.debug_barrier()  # nobody may change a row that another still reads
                for at in range(0, size, TILE):
                    real = at + tile < size
                    item = of_batch(samples, shuffle, start + begin + at + tile, real, count > batch) >> 1
                    e = tl.load(error + at + tile, mask=real, other=0.0)
                    change = -item_rate * e[:, None] * along[None, :]
                    place = item[:, None] * DIM + k[None, :]
                    tl.atomic_add(table + place, change, mask=real[:, None] & wide, sem="relaxed")
                tl.debug_barrier()
            shuffle += shuffled
        tl.store(weights + user * DIM + k, w, mask=k < DIM)
        if BIAS:
            tl.store(biases + user, b)
        if JUDGED:
            w = tl.load(judges + device * (DIM + 1) + k, mask=k < DIM, other=0.0)
            b = tl.load(judges + device * (DIM + 1) + DIM)
        for at in range(0, asked, TILE):
            real = at + tile < asked
            item = tl.load(ask + device.to(tl.int64) * asked + at + tile, mask=real, other=-1)
            known = item >= 0
            own = known & (tl.load(mark + item, mask=known, other=0) == device + 1)
            place = item[:, None] * DIM + k[None, :]
            rows = tl.load(table + place, mask=own[:, None] & wide, other=0.0)
            rows += tl.load(shared + place, mask=(known & (own == 0))[:, None] & wide, other=0.0)
            tl.store(scores + device.to(tl.int64) * asked + at + tile, tl.sum(rows * w[None, :], 1) + b, mask=real)
        tl.debug_barrier()
        rows_changed = 0
        values_changed = 0
        for at in range(0, count, TILE):  # send the changes
            real = at + tile < count
            item = tl.load(samples + start + at + tile, mask=real, other=0) >> 1
            lead = real & (tl.atomic_xchg(mark + item, 0, mask=real, sem="relaxed") == device + 1)
            there = lead[:, None] & wide
            place = item[:, None] * DIM + k[None, :]
            change = tl.load(table + place, mask=there, other=0.0) - tl.load(shared + place, mask=there, other=0.0)
            tl.atomic_add(total + place, change, mask=there, sem="relaxed")
            changed = tl.sum((change != 0).to(tl.int32), 1)
            rows_changed += tl.sum((changed > 0).to(tl.int32), 0)
            values_changed += tl.sum(changed, 0)
        report(figures, device, devices, loss, steps, held, rows_changed, values_changed)
        tl.debug_barrier()  # the table is the next device's
        device = tl.atomic_add(queue, 1, sem="relaxed")


@many
def linear_scores(
    shared, weights, biases, users, ask, scores, asked,
    DIM: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Scores of the items `ask` [users, K] with the server's rows: program (u, t) takes the t-th tile of user u."""
    device = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    real = at < asked
    k = tl.arange(0, WIDTH)
    user = tl.load(users + device)
    w = tl.load(weights + user * DIM + k, mask=k < DIM, other=0.0)
    item = tl.load(ask + device * asked + at, mask=real, other=0)
    rows = tl.load(shared + item[:, None] * DIM + k[None, :], mask=real[:, None] & (k < DIM)[None, :], other=0.0)
    tl.store(scores + device * asked + at, tl.sum(rows * w[None, :], 1) + tl.load(biases + user), mask=real)
