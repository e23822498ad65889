from dataclasses import fields

import pytest
import torch

from federec.checks.comparing import Broken
from federec.checks.rounds import FIELDS, no_undeclared
from federec.cohort.draw import Devices, draw
from federec.federation.round import play
from federec.federation.state import State
from federec.federation.update import Channel, Mean, Update


def test_an_update_has_these_fields_and_no_others():
    assert tuple(field.name for field in fields(Update)) == FIELDS == ("ids", "counts", "rows", "layers")


def test_a_private_name_in_a_message_is_noticed(small):
    with pytest.raises(Broken, match="'user' is sent, but `sends` does not declare it"):
        no_undeclared(small("fedmf"), {"items": torch.zeros(1, 4), "user": torch.zeros(1, 4)})


def known_update():
    """Two devices, 2 + 3 rows in tables of width 4 and 2, a layer of 6 values; no zeros."""
    return Update(
        torch.tensor([1, 5, 0, 1, 7]),
        torch.tensor([2, 3]),
        {"a": torch.ones(5, 4), "b": torch.ones(5, 2)},
        {"net": torch.ones(2, 2, 3)},
    )


def test_bytes_of_a_known_update():
    """4-byte codes and values."""
    update, channel = known_update(), Channel(1000)
    assert channel.send(update) is update
    assert channel.up_bytes == channel.down_bytes == 5 * (4 + 4 * (4 + 2)) + 4 * 2 * 6
    channel.send(update)
    assert channel.up_bytes == 2 * 188


def test_each_device_sends_in_the_cheapest_way():
    """Device 0: row 1 is all zeros, row 5 has two values left. Device 1: one zero in row 7; its layer has one value.

    device 0   rows: 28;  values: 4 + 1 + 2 * 4 = 13                        layer: whole, 24        37
    device 1   rows: 3 * 28 = 84;  values: 3 * 5 + 17 * 4 = 83              layer: 1 + 4 = 5        88
    """
    update, channel = known_update(), Channel(1000)
    update.rows["a"][:2], update.rows["b"][0] = 0, 0
    update.rows["a"][4, 1] = 0
    update.layers["net"][1] = torch.tensor([[0, 0, 0], [0, 3, 0]])
    assert channel.sent(update).tolist() == [37, 88]
    assert channel.fetched(update).tolist() == [2 * 28 + 24, 3 * 28 + 24]  # zeros were not zeros when fetched
    channel.send(update)
    assert (channel.up_bytes, channel.down_bytes) == (125, 188)


def test_a_table_of_few_items_goes_whole():
    assert Channel(3).sent(known_update()).tolist() == [2 * 28 + 24, 3 * 24 + 24]
    silent = known_update()
    for values in (*silent.rows.values(), *silent.layers.values()):
        values.zero_()
    assert Channel(3).sent(silent).tolist() == [1, 1]  # one bit a value of the layer


def test_bytes_of_a_round_are_the_distinct_items_touched(random_split, small):
    method, devices = small("pfedrec"), Devices.of(random_split(), False)
    report = play(method, State.start(method, 40, 12, seed=0), devices, torch.arange(12), 0, 1)
    size = 0
    for user in range(12):
        samples = draw(devices, torch.tensor([user]), 0, 1, 4)
        size += min(len(set(samples.items[0].tolist())) * (4 + 4 * 4), 40 * 4 * 4)
    assert report.up_bytes == report.down_bytes == pytest.approx(size / 12)


def test_mean_is_a_plain_mean_over_devices_where_untouched_rows_count_as_zero():
    torch.manual_seed(0)
    mean, dense = Mean(8), {"a": [], "b": [], "net": []}
    for touched in ([[0, 3], [3, 5, 7]], [[3]], [[1, 2], [], [0, 7]]):  # three cohorts; nobody has 4 and 6
        ids = torch.tensor([item for items in touched for item in items])
        rows = {"a": torch.randn(len(ids), 3), "b": torch.randn(len(ids), 2)}
        layer = torch.randn(len(touched), 2, 2)
        mean.add(Update(ids, torch.tensor([len(t) for t in touched]), rows, {"net": layer}))
        row = 0
        for c, items in enumerate(touched):
            for name in ("a", "b"):
                own = torch.zeros(8, rows[name].shape[1])
                for k, item in enumerate(items):
                    own[item] = rows[name][row + k]
                dense[name].append(own)
            dense["net"].append(layer[c])
            row += len(items)
    values = mean.values()
    assert values.keys() == dense.keys()
    for name, sent in dense.items():
        assert len(sent) == 6
        torch.testing.assert_close(values[name], torch.stack(sent).mean(0))
    assert not values["a"][[4, 6]].any()


def test_a_method_may_count_its_own_bytes_and_ask_for_the_sum():
    update = Update(torch.tensor([1, 0]), torch.tensor([1, 1]), {"a": torch.tensor([[2.0], [4.0]])}, {})
    channel, mean = Channel(3), Mean(3)
    mean.add(channel.send(update, torch.tensor([100, 20]), torch.tensor([3, 4])))
    assert (channel.up_bytes, channel.down_bytes) == (120, 7)
    assert mean.values()["a"].squeeze(1).tolist() == [2.0, 1.0, 0.0]
    assert mean.values(sums=True)["a"].squeeze(1).tolist() == [4.0, 2.0, 0.0]
