import math

import pytest
import torch

from federec.cohort.cohort import Cohort
from federec.cohort.draw import Samples
from federec.cohort.optim import Adam
from federec.cohort.rows import Rows


def cohort_of(per_device, n_items=30, dim=2):
    """Devices with the given samples, the k-th of each a positive where k is even; dots of `w` and item rows."""
    width = max(len(items) for items in per_device)
    items = torch.tensor([items + [n_items - 1] * (width - len(items)) for items in per_device])
    counts = torch.tensor([len(items) for items in per_device])
    labels = (torch.arange(width) % 2 == 0).float().expand(len(items), -1)
    rows = Rows.of(items, counts, n_items)
    torch.manual_seed(0)
    start, w = torch.randn(n_items, dim), torch.randn(len(items), dim)
    samples = Samples(items, labels, counts, 7 * torch.arange(len(items)) + 1)
    return Cohort(torch.arange(len(items)), samples, rows, {"items": start[rows.ids]}, {"w": w})


def alone(cohort, c):
    """Device c of a cohort as a cohort of one."""
    n = int(cohort.samples.counts[c])
    s = cohort.samples
    samples = Samples(s.items[c : c + 1, :n], s.labels[c : c + 1, :n], s.counts[c : c + 1], s.key[c : c + 1])
    rows = Rows.of(samples.items, samples.counts, cohort.n_items)
    mine = cohort.rows.owner == c
    tables = {name: table[mine].clone() for name, table in cohort.tables.items()}
    params = {name: value[c : c + 1].clone() for name, value in cohort.params.items()}
    return Cohort(cohort.users[c : c + 1], samples, rows, tables, params)


def adam(cohort):
    """Step `w` by Adam."""
    cohort.params |= {f"w/{part}": value for part, value in Adam.moments(cohort.params["w"]).items()}


def descend(step, rate=0.5):
    """One squared-error step on everything."""
    p = {name: value.detach().requires_grad_() for name, value in step.values().items()}
    loss = (((p["items"] * p["w"][:, None]).sum(2) - step.labels) ** 2 * step.weight).sum(1)
    step.keep(loss.detach())
    gradients = torch.autograd.grad(loss.sum(), [p["w"], p["items"]])
    for name, gradient in zip(("w", "items"), gradients, strict=True):
        step.move(name, gradient, rate)


UNEVEN = [[4, 7, 4, 1, 9, 2, 8], [5, 5, 6, 0], [3, 1], [2]]


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("epoch", [0, 2])
def test_steps_visit_every_sample_once_in_the_shuffled_order(batch, epoch):
    cohort = cohort_of(UNEVEN)
    seen = [[] for _ in UNEVEN]
    sizes = [[] for _ in UNEVEN]
    for step in cohort.steps(batch, epoch):
        for c in range(step.active):
            real = step.weight[c] > 0
            slots, labels = step.slots[c, real], step.labels[c, real]
            assert set(cohort.rows.owner[slots].tolist()) == {c}
            seen[c] += zip(cohort.rows.ids[slots].tolist(), labels.tolist(), strict=True)
            sizes[c].append(len(slots))
            assert step.weight[c, real].tolist() == pytest.approx([1 / len(slots)] * len(slots))
    order = cohort.samples.order(epoch)
    for c, items in enumerate(UNEVEN):
        assert seen[c] == [(items[k], float(k % 2 == 0)) for k in order[c, : len(items)].tolist()]
        assert len(sizes[c]) == math.ceil(len(items) / batch)
        assert all(size == batch for size in sizes[c][:-1])


def test_finished_devices_take_no_part():
    assert [step.active for step in cohort_of(UNEVEN).steps(1)] == [4, 3, 2, 2, 1, 1, 1]
    assert [step.active for step in cohort_of(UNEVEN).steps(2)] == [4, 2, 1, 1]


def test_a_step_on_a_prefix_leaves_the_finished_untouched():
    cohort = cohort_of(UNEVEN)
    adam(cohort)
    kept = {}
    for step in cohort.steps(1):
        descend(step)
        for c in range(step.active, len(UNEVEN)):
            state = [cohort.tables["items"][cohort.rows.owner == c], *(v[c] for v in cohort.params.values())]
            kept.setdefault(c, [value.clone() for value in state])
            assert all(torch.equal(a, b) for a, b in zip(kept[c], state, strict=True))
    assert set(kept) == {1, 2, 3}
    assert cohort.params["w/t"].tolist() == [7, 4, 2, 1]


@pytest.mark.parametrize("by_adam", [False, True])
@pytest.mark.parametrize("rates", [[0.5] * 4, [0.5, 0.1, 0.02, 2.0]])
def test_a_device_learns_the_same_alone(by_adam, rates):
    cohort = cohort_of(UNEVEN)
    if by_adam:
        adam(cohort)
    single = [alone(cohort, c) for c in range(len(UNEVEN))]
    for step in cohort.steps(2):
        descend(step, torch.tensor(rates)[: step.active])
    for one, rate in zip(single, rates, strict=True):
        for step in one.steps(2):
            descend(step, rate)
    for c, one in enumerate(single):
        torch.testing.assert_close(cohort.tables["items"][cohort.rows.owner == c], one.tables["items"])
        torch.testing.assert_close(cohort.params["w"][c], one.params["w"][0])
    together, apart = torch.cat(cohort.losses), torch.cat([loss for one in single for loss in one.losses])
    torch.testing.assert_close(together.sort().values, apart.sort().values)


def test_a_row_that_a_batch_holds_twice_moves_by_both_gradients():
    cohort = cohort_of([[4, 4, 9], [4, 2, 2]])
    before = cohort.tables["items"].clone()
    (step,) = cohort.steps(3)
    gradient = torch.ones(2, 3, 2)
    step.move("items", gradient, 0.25)
    moved = {(0, 4): 0.5, (0, 9): 0.25, (1, 2): 0.5, (1, 4): 0.25}
    pairs = zip(cohort.rows.owner.tolist(), cohort.rows.ids.tolist(), strict=True)
    expected = before - torch.tensor([moved[pair] for pair in pairs])[:, None]
    torch.testing.assert_close(cohort.tables["items"], expected)


def test_values_are_the_current_ones():
    cohort = cohort_of([[4, 7], [1]])
    (step,) = cohort.steps(2)
    first = step.values()
    assert torch.equal(first["items"], cohort.tables["items"][step.slots])
    step.move("items", torch.ones_like(first["items"]), 1.0)
    step.move("w", torch.ones_like(first["w"]), 1.0)
    now = step.values()
    assert torch.equal(now["items"], cohort.tables["items"][step.slots])
    assert not torch.equal(now["items"], first["items"])
    assert torch.equal(now["w"], cohort.params["w"])


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_device_that_diverges_spoils_no_other(broken):
    cohort = cohort_of(UNEVEN)
    cohort.tables["items"][cohort.rows.owner == broken] = torch.nan
    cohort.params["w"][broken] = torch.inf
    single = [alone(cohort, c) for c in range(len(UNEVEN))]
    for one in (cohort, *single):
        for step in one.steps(3):
            descend(step)
    for c in set(range(len(UNEVEN))) - {broken}:
        assert torch.isfinite(cohort.params["w"][c]).all()
        torch.testing.assert_close(cohort.tables["items"][cohort.rows.owner == c], single[c].tables["items"])
        torch.testing.assert_close(cohort.params["w"][c], single[c].params["w"][0])


@pytest.mark.parametrize("batch", [1, 2, 100])
@pytest.mark.parametrize("half", [0, 1])
def test_a_half_is_the_first_or_second_part_of_the_shuffled_order(batch, half):
    cohort = cohort_of(UNEVEN)
    seen = [[] for _ in UNEVEN]
    for step in cohort.steps(batch, 3, half):
        for c in range(step.active):
            real = step.weight[c] > 0
            assert float(step.weight[c].sum()) == pytest.approx(1)
            ids = cohort.rows.ids[step.slots[c, real]].tolist()
            seen[c] += zip(ids, step.labels[c, real].tolist(), strict=True)
    order = cohort.samples.order(3)
    for c, (items, cut) in enumerate(zip(UNEVEN, (4, 2, 1, 1), strict=True)):
        whole = [(items[k], float(k % 2 == 0)) for k in order[c, : len(items)].tolist()]
        assert seen[c] == (whole[cut:] if half else whole[:cut])


def test_a_device_with_one_sample_has_no_second_half():
    assert list(cohort_of([[2], [3]]).steps(4, half=1)) == []


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_the_whole_is_the_sum_of_the_chunks_means_and_holds_an_item_once(chunk):
    cohort = cohort_of([[4, 7, 4, 1, 9, 4, 8], [5, 6, 5, 6, 5, 0], [3, 1], [2]])
    step = cohort.whole(chunk, epoch=1)
    loss = torch.arange(30.0)  # of an item with label 1; label 0 costs 100 more
    order = cohort.samples.order(1)
    for c in range(4):
        real = step.weight[c] > 0
        ids = cohort.rows.ids[step.slots[c, real]]
        assert ids.tolist() == sorted(set(ids.tolist()))
        assert (cohort.rows.owner[step.slots[c]] == c).all()
        cost = loss[ids] + 100 * (1 - step.labels[c, real])
        n = int(cohort.samples.counts[c])
        k = order[c, :n]
        each = loss[cohort.samples.items[c, k]] + 100 * (1 - cohort.samples.labels[c, k])
        expected = sum(float(part.mean()) for part in each.split(chunk))
        assert float((cost * step.weight[c, real]).sum()) == pytest.approx(expected, rel=1e-5)


def test_shifted_values_are_the_current_ones_plus_the_shift_and_their_loss_is_not_kept():
    cohort = cohort_of([[4, 4, 9], [4, 2, 2]])
    (step,) = cohort.steps(3)
    plain = step.values()
    with step.shifted({"w": torch.ones(2, 2)}):
        p = step.values()
        torch.testing.assert_close(p["w"], plain["w"] + 1)
        assert torch.equal(p["items"], plain["items"])
        step.keep(p["w"].sum(1))
    assert torch.equal(step.values()["w"], plain["w"]) and cohort.losses == []


def test_a_rows_gradient_is_summed_over_its_occurrences():
    cohort = cohort_of([[4, 4, 9], [4, 2, 2]])
    (step,) = cohort.steps(3)
    gradient = torch.tensor([1.0, 10.0, 100.0]).view(1, 3, 1).expand(2, 3, 2)
    summed, table = step.summed("items", gradient), step.scattered("items", gradient)
    for c in range(2):
        for k in range(3):
            same = step.slots[c] == step.slots[c, k]
            assert torch.equal(summed[c, k], gradient[c, same].sum(0))
            assert torch.equal(table[step.slots[c, k]], summed[c, k])
    vector = torch.ones(2, 2)
    assert step.summed("w", vector) is vector


def test_passes_over_one_whole_batch_are_passes_over_its_samples():
    """Rows that stay gathered end up where stepping sample by sample takes them; a rate per device, and a decay."""
    rate, keep = torch.tensor([0.5, 0.0, 0.1, 0.2]), torch.tensor([0.9, 1.0, 0.8, 0.5])
    kept, plain = cohort_of(UNEVEN), cohort_of(UNEVEN)
    untouched = kept.tables["items"][kept.rows.owner == 1].clone()
    for passes in (kept.passes(7, 3), (plain.steps(7, epoch) for epoch in range(3))):
        for steps in passes:
            for step in steps:
                assert step.sizes.tolist() == [7, 4, 2, 1]
                for name in ("w", "items"):
                    step.shrink(name, keep)
                descend(step, rate)
    for before, after in zip(plain.losses, kept.losses, strict=True):  # device 1 has an item with either label
        torch.testing.assert_close(after[[0, 2, 3]], before[[0, 2, 3]])
    torch.testing.assert_close(kept.tables["items"], plain.tables["items"])
    torch.testing.assert_close(kept.params["w"], plain.params["w"])
    assert torch.equal(kept.tables["items"][kept.rows.owner == 1], untouched)


def test_passes_over_several_batches_shuffle_anew():
    cohort = cohort_of(UNEVEN)
    slots = [[step.slots.tolist() for step in steps] for steps in cohort.passes(3, 2)]
    assert slots == [[step.slots.tolist() for step in cohort.steps(3, epoch)] for epoch in (0, 1)]
    assert slots[0] != slots[1]


def test_shrinking_takes_all_rows_of_the_active_devices():
    cohort = cohort_of(UNEVEN)
    before = cohort.tables["items"].clone()
    *_, last = cohort.steps(2)  # only the first device has a fourth batch
    last.values()
    last.shrink("items", torch.tensor([0.5]))
    first = cohort.rows.owner == 0
    torch.testing.assert_close(cohort.tables["items"], torch.where(first[:, None], before / 2, before))
    torch.testing.assert_close(last.values()["items"], cohort.tables["items"][last.slots])
