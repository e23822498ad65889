"""The GPU's round of FedRAP, sigma(u_i . (c_j + d_ij) + b_i): shared rows c, and rows d that a device keeps for itself.
One program trains one device after the other, as in `gpu_linear`."""

from __future__ import annotations

import triton.language as tl

from federec.kernels.gpu import error_of, jit, many, of_batch, report


@jit
def _lie(pages, number, real, PAGE: tl.constexpr):
    """Where the rows of these numbers lie in a store, by the pages of their device."""
    return tl.load(pages + number // PAGE, mask=real, other=0) * PAGE + number % PAGE


@jit
def _row(rows, lie, k, DIM: tl.constexpr):
    """Values of a store's rows."""
    return rows + lie.to(tl.int64)[:, None] * DIM + k[None, :]


@many
def additive_round(
    common, start, ids, rows, pages, held, weights, biases, users, first, counts, samples, order, total, figures,
    tables, lies, marks, copies, leads, queue, devices, n_items, most_pages, shuffled, batch, epochs,
    rate, item_rate, own_rate, pace, step_decay, weight_decay, tolerance, away, small,
    L1: tl.constexpr, PAGE: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One round of FedRAP: private weights and rows step in place, changes of common rows are added to `total` [M, d].

    A device's own rows lie on the pages of a `RowStore`, where `lies` says. Rows that a batch holds several times are
    looked at once, by the sample that leads, with the weight of all `copies`; so no row is written twice. Weight decay
    acts on all rows of the device in every batch: where a batch does not hold them all, by one factor for all rows."""
    program = tl.program_id(0).to(tl.int64)
    table = tables + program * n_items * DIM
    lie_of = lies + program * n_items
    mark = marks + program * n_items
    copies_of = copies + program * n_items
    lead_of = leads + program * batch
    tile = tl.arange(0, TILE)
    k = tl.arange(0, WIDTH)
    wide = (k < DIM)[None, :]
    device = tl.atomic_add(queue, 1, sem="relaxed")
    while device < devices:
        user = tl.load(users + device)
        start_at = tl.load(first + device)
        count = tl.load(counts + device)
        several = count > batch
        w = tl.load(weights + user * DIM + k, mask=k < DIM, other=0.0)
        b = tl.load(biases + user)

        for at in range(0, n_items, TILE):
            tl.store(lie_of + at + tile, tl.full((TILE,), -1, tl.int32), mask=at + tile < n_items)
        tl.debug_barrier()
        had = tl.load(held + user).to(tl.int32)
        for at in range(0, had, TILE):  # where the device's rows lie
            real = at + tile < had
            lie = _lie(pages + user * most_pages, at + tile, real, PAGE)
            tl.store(lie_of + tl.load(ids + lie, mask=real, other=0), lie, mask=real)
        tl.debug_barrier()
        rows_held = 0
        for at in range(0, count, TILE):  # fetch common rows, begin own rows that are new
            real = at + tile < count
            item = tl.load(samples + start_at + at + tile, mask=real, other=0) >> 1
            fetched = real & (tl.atomic_xchg(mark + item, device + 1, mask=real, sem="relaxed") != device + 1)
            place = item[:, None] * DIM + k[None, :]
            there = fetched[:, None] & wide
            tl.store(table + place, tl.load(common + place, mask=there, other=0.0), mask=there)
            new = fetched & (tl.load(lie_of + item, mask=fetched, other=0) < 0)
            tl.debug_barrier()  # several threads may hold the same number: all have read before one writes
            lie = _lie(pages + user * most_pages, had + tl.cumsum(new.to(tl.int32), 0) - 1, new, PAGE)
            tl.store(lie_of + item, lie, mask=new)
            tl.store(ids + lie, item, mask=new)
            there = new[:, None] & wide
            tl.store(_row(rows, lie, k, DIM), tl.load(start + place, mask=there, other=0.0), mask=there)
            had += tl.sum(new.to(tl.int32), 0)
            rows_held += tl.sum(fetched.to(tl.int32), 0)
        tl.store(held + user, had)
        tl.debug_barrier()

        shuffle = order
        speed = pace
        scale = 1.0  # a common row is so many times the one in the table, an own row the one in the store
        own_scale = 1.0
        epoch = 0
        steps = 0
        summed = 0.0
        weighed = 0.0
        last = 0.0
        while epoch < epochs:
            for begin in range(0, count, batch):
                size = tl.minimum(count - begin, batch)
                if several | (epoch == 0):
                    for at in range(0, size, TILE):
                        real = at + tile < size
                        item = of_batch(samples, shuffle, start_at + begin + at + tile, real, several) >> 1
                        before = tl.atomic_add(copies_of + item, 1, mask=real, sem="relaxed")
                        tl.store(lead_of + at + tile, (before == 0).to(tl.int32), mask=real)
                    tl.debug_barrier()
                keep = 1 - speed * rate * weight_decay
                shrink = 1 - speed * item_rate * weight_decay
                own_shrink = 1 - speed * own_rate * weight_decay
                new_scale = scale * shrink
                own_new_scale = own_scale * own_shrink
                if several == 0:  # the batch holds all rows
                    new_scale = 1.0
                    own_new_scale = 1.0
                gradient = tl.zeros((WIDTH,), tl.float32)
                slope = 0.0
                loss = 0.0
                for at in range(0, size, TILE):
                    real = at + tile < size
                    sample = of_batch(samples, shuffle, start_at + begin + at + tile, real, several)
                    item = sample >> 1
                    lead = real & (tl.load(lead_of + at + tile, mask=real, other=0) > 0)
                    weight = tl.load(copies_of + item, mask=lead, other=0).to(tl.float32) / size
                    there = lead[:, None] & wide
                    place = table + item[:, None] * DIM + k[None, :]
                    own_place = _row(rows, tl.load(lie_of + item, mask=lead, other=0), k, DIM)
                    c = scale * tl.load(place, mask=there, other=0.0)
                    d = own_scale * tl.load(own_place, mask=there, other=0.0)
                    z = tl.sum((c + d) * w[None, :], 1) + b
                    e, cross_entropy = error_of(z, (sample & 1).to(tl.float32), lead, 1)
                    e *= weight
                    apart = d - c
                    if L1:
                        norm = tl.sum(tl.abs(c), 1)
                        slant = tl.where(c > 0, 1.0, tl.where(c < 0, -1.0, 0.0))
                    else:
                        norm = tl.sum(c * c, 1)
                        slant = 2 * c
                    terms = (small * norm - away * tl.sum(apart * apart, 1)) / DIM
                    loss += tl.sum(weight * (cross_entropy + terms), 0)
                    gradient += tl.sum((c + d) * e[:, None], 0)
                    slope += tl.sum(e, 0)
                    pulled = e[:, None] * w[None, :]
                    share = (weight / DIM)[:, None]
                    pushed = 2 * away * share * apart
                    c = shrink * c - speed * item_rate * (pulled + pushed + small * share * slant)
                    d = own_shrink * d - speed * own_rate * (pulled - pushed)
                    tl.store(place, c / new_scale, mask=there)
                    tl.store(own_place, d / own_new_scale, mask=there)
                    tl.debug_barrier()
                    if several:
                        tl.store(copies_of + item, tl.zeros((TILE,), tl.int32), mask=lead)
                tl.debug_barrier()
                w = keep * w - speed * rate * gradient
                b = keep * b - speed * rate * slope
                scale = new_scale
                own_scale = own_new_scale
                speed *= step_decay
                summed += loss
                weighed += loss * size
                steps += 1
            epoch += 1
            shuffle += shuffled
            mean = weighed / (epoch * count).to(tl.float32)
            if (epoch > 1) & (tl.abs(mean - last) < tolerance * tl.abs(last)):  # the loss has settled
                epoch = epochs
            last = mean

        rows_changed = 0
        values_changed = 0
        for at in range(0, count, TILE):  # send the changes, forget the round
            real = at + tile < count
            item = tl.load(samples + start_at + at + tile, mask=real, other=0) >> 1
            lead = real & (tl.atomic_xchg(mark + item, 0, mask=real, sem="relaxed") == device + 1)
            there = lead[:, None] & wide
            place = item[:, None] * DIM + k[None, :]
            change = scale * tl.load(table + place, mask=there, other=0.0)
            change -= tl.load(common + place, mask=there, other=0.0)
            tl.atomic_add(total + place, change, mask=there, sem="relaxed")
            changed = tl.sum((change != 0).to(tl.int32), 1)
            rows_changed += tl.sum((changed > 0).to(tl.int32), 0)
            values_changed += tl.sum(changed, 0)
            if several:
                own_place = _row(rows, tl.load(lie_of + item, mask=lead, other=0), k, DIM)
                tl.store(own_place, own_scale * tl.load(own_place, mask=there, other=0.0), mask=there)
            tl.store(copies_of + item, tl.zeros((TILE,), tl.int32), mask=lead)
        tl.store(weights + user * DIM + k, w, mask=k < DIM)
        tl.store(biases + user, b)
        report(figures, device, devices, summed, steps, rows_held, rows_changed, values_changed)
        tl.debug_barrier()  # the tables are the next device's
        device = tl.atomic_add(queue, 1, sem="relaxed")
