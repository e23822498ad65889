import pytest
import torch

from federec.cohort.draw import Devices, draw
from federec.cohort.update import Update
from federec.federation.round import play
from federec.federation.state import State
from federec.stages.base import Format
from federec.stages.randomness import Simulated
from federec.stages.registry import STAGES


def known_update(n_items=1000):
    """Two devices, 2 + 3 rows in tables of width 4 and 2, a layer of 6 values; no zeros."""
    return Update(
        n_items,
        torch.tensor([1, 5, 0, 1, 7]) % n_items,
        torch.tensor([2, 3]),
        {"a": torch.ones(5, 4), "b": torch.ones(5, 2)},
        {"net": torch.ones(2, 2, 3)},
    )


def test_bytes_of_a_known_update():
    """4-byte codes and values."""
    assert int(Format().update(known_update()).sum()) == 5 * (4 + 4 * (4 + 2)) + 4 * 2 * 6


def test_each_device_sends_in_the_cheapest_way():
    """Device 0: row 1 is all zeros, row 5 has two values left. Device 1: one zero in row 7; its layer has one value.

    device 0   rows: 28;  values: 4 + 1 + 2 * 4 = 13                        layer: whole, 24        37
    device 1   rows: 3 * 28 = 84;  values: 3 * 5 + 17 * 4 = 83              layer: 1 + 4 = 5        88
    """
    update = known_update()
    update.rows["a"][:2], update.rows["b"][0] = 0, 0
    update.rows["a"][4, 1] = 0
    update.layers["net"][1] = torch.tensor([[0, 0, 0], [0, 3, 0]])
    assert Format().update(update).tolist() == [37, 88]
    assert Format("named").update(update).tolist() == [2 * 28 + 24, 3 * 28 + 5]


def test_a_table_of_few_items_goes_whole():
    assert Format().update(known_update(3)).tolist() == [2 * 28 + 24, 3 * 24 + 24]
    assert Format("all").update(known_update(3)).tolist() == [3 * 24 + 24] * 2
    silent = known_update(3)
    for values in silent.values().values():
        values.zero_()
    assert Format().update(silent).tolist() == [1, 1]  # one bit a value of the layer


def test_bytes_of_narrow_values():
    """8 bits and an exponent a row: device 0 has rows 2 * (4 + 1 + 6) and a layer of 1 + 6."""
    assert Format(value_bits=8, row_bytes=1).update(known_update()).tolist() == [22 + 7, 33 + 7]


def test_bytes_of_a_round_are_the_distinct_items_touched(random_split, small):
    method, devices = small("pfedrec"), Devices.of(random_split(), False)
    report = play(method, State.start(method, 40, 12, seed=0), devices, torch.arange(12), 0, 1)
    size = 0
    for user in range(12):
        samples = draw(devices, torch.tensor([user]), 0, 1, 4)
        size += min(len(set(samples.items[0].tolist())) * (4 + 4 * 4), 40 * 4 * 4)
    assert report.up_bytes == report.down_bytes == pytest.approx(size / 12)


@pytest.mark.parametrize("name", STAGES)
def test_what_a_device_sends_does_not_depend_on_its_cohort(name, update, random, parts):
    stage = STAGES[name]()
    together = parts(stage.device(update, random))
    for device, (alone, sent) in enumerate(zip(parts(update), together, strict=True)):
        own = Simulated(random.keys[device : device + 1])
        expected = stage.device(alone, own)
        assert torch.equal(sent.ids, expected.ids) and torch.equal(sent.counts, expected.counts)
        assert all(torch.equal(value, expected.values()[key]) for key, value in sent.values().items())


@pytest.mark.parametrize("name", [name for name in STAGES if name != "distributed-noise"])  # that makes one vector
def test_a_stage_adds_no_field_and_keeps_names_shapes_and_order(name, update, random):
    sent = STAGES[name]().device(update, random)
    assert sent.rows.keys() == update.rows.keys() and sent.layers.keys() == update.layers.keys()
    assert all(rows.shape == (len(sent.ids), update.rows[key].shape[1]) for key, rows in sent.rows.items())
    assert int(sent.counts.sum()) == len(sent.ids) and sent.n_items == update.n_items
    pairs = sent.owner * sent.n_items + sent.ids
    assert bool((pairs.diff() > 0).all())
    assert STAGES[name].adds_rows == bool((sent.counts > update.counts).any())


@pytest.mark.parametrize("name", [name for name, stage in STAGES.items() if stage.on_sums])
def test_a_stage_that_claims_to_work_on_sums_leaves_the_sum_as_it_is(name, update, random):
    stage = STAGES[name]()

    def total(update, key):
        return torch.zeros(update.n_items, update.rows[key].shape[1]).index_add_(0, update.ids, update.rows[key])

    sent = stage.device(update, random)
    assert all(torch.equal(total(sent, key), total(update, key)) for key in update.rows)
