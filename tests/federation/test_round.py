import pytest
import torch

from federec.checks import rounds
from federec.checks.comparing import uneven_split
from federec.checks.rounds import SEED, contents
from federec.cohort.draw import Devices, draw
from federec.federation.device import cohorts
from federec.federation.round import select
from federec.federation.state import State


@pytest.fixture(scope="module", params=["few items", "many items"])
def devices(request):
    """Few items: dense tables. Many items: sorted rows."""
    few = request.param == "few items"
    return Devices.of(uneven_split(few), few)


@pytest.fixture
def start(device_method, devices):
    return rounds.started(device_method, devices)


OTHERS = (rounds.chunk_sizes, rounds.absent_devices, rounds.repetition, rounds.private_state)


@pytest.mark.parametrize("holds", [rounds.cohort_of_many, *OTHERS])
@pytest.mark.parametrize("devices", ["few items"], indirect=True)
def test_what_holds_for_a_round_of_every_method(holds, device_method, devices, start):
    assert holds(device_method, devices, start)


@pytest.mark.parametrize(
    "holds", [rounds.cohort_of_many, *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)]
)
@pytest.mark.parametrize("devices", ["many items"], indirect=True)
def test_the_same_where_tables_are_sorted_rows(holds, device_method, devices, start):
    assert holds(device_method, devices, start)


@pytest.mark.parametrize("holds", OTHERS)
@pytest.mark.parametrize("devices", ["many items"], indirect=True)
@pytest.mark.parametrize("name", ["everything", "pfedrec", "fedrap"])
def test_a_few_methods_stand_for_all_where_tables_are_sorted_rows(holds, name, small, devices):
    method = small(name)
    assert holds(method, devices, rounds.started(method, devices))


def test_only_what_a_method_declares_leaves_a_device(device_method, devices):
    assert rounds.declared_only(device_method, devices)


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
