import numpy as np
import pytest
import torch

from federec.cohort.draw import Devices, draw
from federec.federation.round import MEMORY, cohorts, play, select, update_of
from federec.federation.state import State

SEED = 3


def close(actual, expected, what=""):
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4 * scale + 1e-7, msg=lambda m: f"{what}: {m}")


def look(method, cohort, state):
    """All that each device of a cohort holds and sends, by user."""
    update, samples, seen = update_of(method, cohort, state), cohort.samples, {}
    sent = torch.repeat_interleave(torch.arange(len(cohort)), update.counts)
    for c, user in enumerate(cohort.users.tolist()):
        n, mine = int(samples.counts[c]), cohort.rows.owner == c
        order = [samples.order(epoch)[c, :n] for epoch in range(method.epochs)]
        drawn = {"items": samples.items[c, :n], "labels": samples.labels[c, :n], "order": torch.stack(order)}
        learned = {f"table {name}": table[mine] for name, table in cohort.tables.items()}
        learned |= {f"param {name}": value[c] for name, value in cohort.params.items()}
        learned |= {f"sent {name}": rows[sent == c] for name, rows in update.rows.items()}
        learned |= {f"sent {name}": layer[c] for name, layer in update.layers.items()}
        seen[user] = {**drawn, "rows": cohort.rows.ids[mine], "sent": update.ids[sent == c]}, learned
    return seen


def one_round(method, start, devices, users, memory=MEMORY, round_=2):
    """State after a round, what every device held, the sizes of the cohorts, and the server's report."""
    state, seen, sizes = start.copy(), {}, []

    def observe(cohort):
        seen.update(look(method, cohort, state))
        sizes.append(len(cohort))

    report = play(method, state, devices, users, SEED, round_, observe, memory)
    assert sorted(seen) == users.tolist()
    return state, seen, sizes, report


def contents(state):
    """All values of a state, every device's private tables written out in full."""
    flat = {f"shared {name}": value for name, value in state.shared.items()}
    flat |= {f"server {name}": value for name, value in state.server.items()}
    flat |= {f"private {name}": value for name, value in state.private.items()}
    for name, store in state.stores.items():
        owner, items = torch.arange(len(store.held)), torch.arange(len(store.start))
        flat[f"store {name}"] = store.take(owner, owner[:, None], items)
    return flat


def plain_mean(method, seen, devices, shared):
    """The mean, or the sum, of what the devices sent (or the server made of it), every device written out in full."""
    made = [made_of(method, user, *one, shared) for user, one in seen.items()]
    if made[0] is not None:
        return {name: sum(one[name] for one in made) / (1 if method.sums else len(made)) for name in made[0]}
    mean = {}
    for name, param in method.sends().items():
        if not all(f"sent {name}" in learned for _, learned in seen.values()):
            continue
        full = []
        for drawn, learned in seen.values():
            sent = learned[f"sent {name}"]
            if param.rows:
                sent = torch.zeros(devices.n_items, *param.sized(devices.n_items)).index_copy(0, drawn["sent"], sent)
            full.append(sent)
        mean[name] = torch.stack(full).sum(0) / (1 if method.sums else len(full))
    return mean


def made_of(method, user, drawn, learned, shared):
    """What the server makes of one device's message."""
    message = {name: learned[f"sent {name}"] for name in method.sends() if f"sent {name}" in learned}
    message = {name: value if method.sends()[name].rows else value[None] for name, value in message.items()}
    owner = torch.zeros_like(drawn["sent"])
    return method.receive(torch.tensor([user]), drawn["sent"], owner, message, shared)


def same(seen, expected):
    assert seen.keys() == expected.keys()
    for user, (drawn, learned) in seen.items():
        for name, value in expected[user][0].items():
            assert torch.equal(drawn[name], value), (user, name)
        for name, value in expected[user][1].items():
            close(learned[name], value, f"user {user}, {name}")


@pytest.fixture(scope="module", params=["few items", "many items"])
def devices(request, split_of):
    """Few items: dense tables, a user who has them all and draws no negatives. Many items: sorted rows."""
    rng = np.random.default_rng(1)
    few = request.param == "few items"
    n_items, lengths = (30, [30, 1, 2, 3, 9, 9, 9, 8, 10, 14, 15, 15]) if few else (500, [1, 2, 3, 4, 8, 8, 8, 9, 9])
    return Devices.of(split_of([rng.permutation(n_items)[:n] for n in lengths], n_items), few)


@pytest.fixture
def start(device_method, devices):
    """After one round, so that devices differ from one another."""
    state = State.start(device_method, devices.n_items, len(devices), SEED)
    play(device_method, state, devices, torch.arange(len(devices)), SEED, 1)
    return state


def test_a_cohort_of_many_is_many_cohorts_of_one(device_method, devices, start):
    everyone = torch.arange(len(devices))
    state, together, sizes, _ = one_round(device_method, start, devices, everyone)
    assert max(sizes) > 2
    alone, after = {}, {}
    for user in everyone:
        after[int(user)], seen, _, _ = one_round(device_method, start, devices, user[None])
        alone |= seen
    same(together, alone)
    single = {user: contents(one) for user, one in after.items()}
    for name, value in contents(state).items():
        if name.startswith(("private ", "store ")):
            close(value, torch.stack([one[name][user] for user, one in single.items()]), name)
    memory = {name: value.clone() for name, value in start.server.items()}
    for name, value in device_method.server_step(
        start.shared, plain_mean(device_method, alone, devices, start.shared), memory
    ).items():
        close(state.shared[name], value, name)
    for name, value in memory.items():
        close(state.server[name], value, name)


@pytest.mark.thorough
def test_the_size_of_cohorts_and_the_number_of_threads_change_nothing(device_method, devices, start):
    users = torch.arange(len(devices))
    state, seen, sizes, report = one_round(device_method, start, devices, users)
    small, seen_small, sizes_small, report_small = one_round(device_method, start, devices, users, memory=1.0)
    assert sizes_small == [1] * len(users) and len(sizes) < len(users)
    torch.set_num_threads(3)
    try:
        threaded, seen_threaded, _, _ = one_round(device_method, start, devices, users)
    finally:
        torch.set_num_threads(1)
    same(seen_small, seen)
    same(seen_threaded, seen)
    for other in (small, threaded):
        for name, value in contents(other).items():
            close(value, contents(state)[name], name)
    assert report_small.up_bytes == report.up_bytes
    assert report_small.loss == (None if report.loss is None else pytest.approx(report.loss, rel=1e-4))


def test_those_who_take_no_part_stay_as_they_are(device_method, devices, start):
    users = torch.tensor([1, 4, 6])
    before = contents(start)
    state, _, _, _ = one_round(device_method, start, devices, users)
    others = [u for u in range(len(devices)) if u not in users]
    moved = False
    for name, value in contents(state).items():
        if name.startswith(("private ", "store ")):
            assert torch.equal(value[others], before[name][others]), name
        moved = moved or not torch.equal(value, before[name])
    assert moved


def test_a_round_is_the_same_every_time_and_rounds_differ(device_method, devices, start):
    users = torch.arange(len(devices))
    first, seen, _, _ = one_round(device_method, start, devices, users)
    again, _, _, _ = one_round(device_method, start, devices, users)
    assert all(torch.equal(value, contents(first)[name]) for name, value in contents(again).items())
    _, other, _, _ = one_round(device_method, start, devices, users, round_=3)
    drawn_anew = any(not torch.equal(seen[u][0]["items"], other[u][0]["items"]) for u in seen)
    assert drawn_anew == (device_method.negatives > 0)


def test_cohorts_hold_what_was_drawn_and_fetched(devices, small):
    method = small("pfedrec")
    state = State.start(method, devices.n_items, len(devices), SEED)
    for cohort in cohorts(method, state, devices, torch.arange(len(devices)), SEED, 5):
        counts = cohort.samples.counts.tolist()
        assert counts == sorted(counts, reverse=True)
        drawn = draw(devices, cohort.users, SEED, 5, method.negatives)
        assert torch.equal(cohort.samples.items, drawn.items)
        assert torch.equal(cohort.tables["items"], state.shared["items"][cohort.rows.ids])
        cohort.tables["items"] += 1  # its own copies
        for value in cohort.params.values():
            value += 1
    fresh = State.start(method, devices.n_items, len(devices), SEED)
    assert all(torch.equal(value, contents(fresh)[name]) for name, value in contents(state).items())


@pytest.mark.parametrize(("share", "count"), [(0.3, 30), (0.0, 1), (0.016, 2), (0.999, 100), (1.0, 100)])
def test_select_is_a_pure_function_with_the_right_count(share, count):
    chosen = select(100, share, 5, 9)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert len(chosen) == count and chosen.min() >= 0 and chosen.max() < 100
    assert torch.equal(select(100, share, 5, 9), chosen)
    if count < 100:
        assert not torch.equal(select(100, share, 5, 10), chosen)
        assert not torch.equal(select(100, share, 6, 9), chosen)


def test_select_is_fair():
    rounds = 2000
    counts = torch.stack([torch.bincount(select(20, 0.25, 0, r), minlength=20) for r in range(1, rounds + 1)]).sum(0)
    expected = rounds * 0.25
    assert (counts - expected).abs().max() < 5 * (expected * 0.75) ** 0.5
