"""Properties of aggregators that keep all updates of a round."""

import pytest
import torch

from federec.aggregators import gathered
from federec.aggregators.item_clip import ItemClipSettings
from federec.aggregators.krum import MultiKrumSettings
from federec.aggregators.mean import Mean
from federec.aggregators.norm_bound import NormBoundSettings
from federec.aggregators.participants import ParticipantsSettings
from federec.aggregators.registry import AGGREGATORS, parse_aggregator
from federec.aggregators.trimmed_mean import TrimmedMeanSettings
from federec.cohort.update import Update
from federec.errors import UserError
from federec.settings import written

ROBUST = [name for name, kind in AGGREGATORS.items() if kind.gathers]
ITEMS, DEVICES = 9, 21


def dense_update(rows, layers):
    """An update of devices that all touch all items: rows [C, ITEMS, W], layers [C, L]."""
    count = len(rows)
    ids = torch.arange(ITEMS).repeat(count)
    return Update(
        ITEMS, ids, torch.full((count,), ITEMS), {"a": rows.flatten(0, 1)[:, :2], "b": rows.flatten(0, 1)[:, 2:]},
        {"net": layers},
    )  # fmt: skip


def ragged_update(devices=DEVICES, seed=0):
    torch.manual_seed(seed)
    touched = torch.rand(devices, ITEMS) < 0.5
    touched[:, 0] = True  # everybody has one row at least
    touched[:, 4] = False  # and nobody has this one
    ids = touched.nonzero()[:, 1]
    rows = {"a": torch.randn(len(ids), 2), "b": torch.randn(len(ids), 3)}
    return Update(ITEMS, ids, touched.sum(1), rows, {"net": torch.randn(devices, 2, 2)})


def chosen(update, devices):
    """The part of some devices, in this order."""
    mine = torch.cat([(update.owner == device).nonzero().flatten() for device in devices])
    return Update(
        ITEMS, update.ids[mine], update.counts[torch.tensor(devices)],
        {name: rows[mine] for name, rows in update.rows.items()},
        {name: layer[torch.tensor(devices)] for name, layer in update.layers.items()},
    )  # fmt: skip


def result(name, *updates, settings=None):
    aggregator = AGGREGATORS[name](ITEMS, settings=settings)
    for update in updates:
        aggregator.add(update)
    return aggregator.result()


def assert_close(one, other, **how):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], **how)


def by_hand(statistic):
    """n_j / N times a statistic of the rows of those who touched j; of layers, the statistic over all."""
    update = ragged_update()
    found = {name: torch.zeros(ITEMS, rows.shape[1]) for name, rows in update.rows.items()}
    for name, rows in update.rows.items():
        for item in range(ITEMS):
            mine = rows[update.ids == item]
            if len(mine):
                found[name][item] = statistic(mine) * len(mine) / DEVICES
    return update, found | {"net": statistic(update.layers["net"])}


@pytest.mark.parametrize("name", ROBUST)
def test_the_order_of_devices_and_cohorts_does_not_matter(name):
    update = ragged_update()
    whole = result(name, update)
    order = list(range(DEVICES))[::-1]
    assert_close(result(name, chosen(update, order)), whole)
    assert_close(result(name, chosen(update, order[:5]), chosen(update, order[5:])), whole)


@pytest.mark.parametrize("name", ROBUST)
def test_the_result_scales_with_the_updates(name):
    update = ragged_update()
    larger = update.with_values({key: 3 * value for key, value in update.values().items()})
    assert_close(result(name, larger), {key: 3 * value for key, value in result(name, update).items()})


@pytest.mark.parametrize("name", [name for name in ROBUST if name != "foolsgold"])
def test_if_all_send_the_same_that_is_the_result(name):
    rows, layers = torch.randn(1, ITEMS, 5), torch.randn(1, 3)
    update = dense_update(rows.expand(DEVICES, -1, -1), layers.expand(DEVICES, -1))
    expected = {"a": rows[0, :, :2], "b": rows[0, :, 2:], "net": layers[0]}
    assert_close(result(name, update), expected, rtol=1e-4, atol=1e-5)


def test_foolsgold_ignores_devices_that_send_the_same():
    honest = ragged_update()
    clones = chosen(honest, [3] * 5)
    clones = clones.with_values({key: 10 * value for key, value in clones.values().items()})
    alone = result("foolsgold", chosen(honest, [d for d in range(DEVICES) if d != 3]))
    found = result("foolsgold", chosen(honest, [d for d in range(DEVICES) if d != 3]), clones)
    plain = Mean(ITEMS)
    plain.add(honest)
    plain.add(clones)
    distance = (found["a"] - alone["a"] * (DEVICES - 1) / (DEVICES + 4)).norm()
    assert distance < 0.2 * (plain.result()["a"] - found["a"]).norm()


@pytest.mark.parametrize("name", [name for name in ROBUST if name != "foolsgold"])
@pytest.mark.parametrize("size", [1e3, 1e6])
def test_one_outlier_moves_the_result_no_further_than_a_bound(name, size):
    torch.manual_seed(1)
    rows, layers = 1 + 0.1 * torch.randn(DEVICES, ITEMS, 5), 1 + 0.1 * torch.randn(DEVICES, 3)
    honest = result(name, dense_update(rows, layers))
    rows[7], layers[7] = -size, -size
    found = result(name, dense_update(rows, layers))
    for key, value in honest.items():
        assert (found[key] - value).abs().max() < 0.5, key


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_a_device_with_values_that_are_no_numbers_counts_as_one_that_changed_nothing(name, wrong):
    update = ragged_update()
    others = chosen(update, [d for d in range(DEVICES) if d != 7])
    expected = {key: value * (DEVICES - 1) / DEVICES for key, value in result(name, others).items()}
    update.rows["b"][(update.owner == 7).nonzero()[0]] = wrong
    assert_close(result(name, update), expected)


@pytest.mark.parametrize("name", ROBUST)
def test_nothing_comes_of_nothing(name):
    assert result(name) == {}
    empty = Update(ITEMS, torch.zeros(0, dtype=torch.int64), torch.zeros(2, dtype=torch.int64),
                   {"a": torch.zeros(0, 2)}, {"net": torch.zeros(2, 3)})  # fmt: skip
    found = result(name, empty)
    assert found["a"].shape == (ITEMS, 2)
    assert not found["a"].any()
    assert not found["net"].any()
    broken = empty.with_values({"a": empty.rows["a"], "net": torch.full((2, 3), torch.nan)})
    assert not result(name, broken)["net"].any()


@pytest.mark.parametrize("name", ROBUST)
def test_small_blocks_give_the_same(name, monkeypatch):
    whole = result(name, ragged_update())
    monkeypatch.setattr(gathered, "_BLOCK", 7)
    monkeypatch.setattr(gathered, "_DEVICES", 4)
    assert_close(result(name, ragged_update()), whole)


def test_median_is_the_median_of_those_who_touched_a_row():
    update, expected = by_hand(lambda values: values.quantile(0.5, dim=0))
    assert_close(result("median", update), expected)


def test_trimmed_mean_leaves_out_the_outermost():
    def trimmed(values):
        cut = int(0.2 * len(values))
        return values.sort(0).values[cut : len(values) - cut].mean(0)

    update, expected = by_hand(trimmed)
    assert_close(result("trimmed-mean", update, settings=TrimmedMeanSettings(fraction=0.2)), expected)


def test_without_trimming_or_bounds_it_is_the_mean():
    mean = Mean(ITEMS)
    mean.add(ragged_update())
    loose = {
        "trimmed-mean": TrimmedMeanSettings(fraction=0),
        "norm-bound": NormBoundSettings(norm=1e6),
        "item-clip": ItemClipSettings(norm=1e6),
        "multi-krum": MultiKrumSettings(fraction=0),
    }
    for name, settings in loose.items():
        assert_close(result(name, ragged_update(), settings=settings), mean.result())


def test_norm_bound_and_item_clip_bound_what_one_device_moves():
    single = chosen(ragged_update(), [2])
    found = result("norm-bound", single, settings=NormBoundSettings(norm=0.5))
    assert torch.cat([value.flatten() for value in found.values()]).norm() == pytest.approx(0.5, rel=1e-5)
    found = result("item-clip", single, settings=ItemClipSettings(norm=0.5))
    assert torch.cat([found["a"], found["b"]], 1).norm(dim=1).max() == pytest.approx(0.5, rel=1e-5)


def test_one_device_does_not_own_a_rare_items_row():
    single, settings = chosen(ragged_update(), [2]), ParticipantsSettings(least=4)
    assert_close(
        {"a": result("participants", single, settings=settings)["a"]},
        {"a": result("item-clip", single)["a"] / 4},
    )


def test_krum_takes_the_update_in_the_middle():
    rows, layers = torch.arange(5.0)[:, None, None].expand(5, ITEMS, 5), torch.zeros(5, 3)
    rows = torch.cat([rows, torch.full((1, ITEMS, 5), 100.0)])
    found = result("krum", dense_update(rows, torch.cat([layers, layers[:1]])))
    assert found["a"][0, 0] in (1.0, 2.0, 3.0)


def test_geometric_median_is_where_no_step_makes_the_sum_of_distances_smaller():
    torch.manual_seed(2)
    rows, layers = torch.randn(DEVICES, ITEMS, 5), torch.randn(DEVICES, 3)
    found = result("geometric-median", dense_update(rows, layers))
    centre = torch.cat([torch.cat([found["a"], found["b"]], 1).flatten(), found["net"]])
    every = torch.cat([rows.flatten(1), layers], 1)
    best = (every - centre).norm(dim=1).sum()
    for _ in range(20):
        assert (every - centre - 0.05 * torch.randn_like(centre)).norm(dim=1).sum() > best


def test_settings_are_written_like_those_of_stages():
    kind, settings = parse_aggregator("trimmed-mean:fraction=0.2")
    assert settings == TrimmedMeanSettings(fraction=0.2)
    assert written(kind.name, settings) == "trimmed-mean:fraction=0.2"
    assert parse_aggregator("mean")[1] is None
    assert written(*parse_name("item-clip")) == "item-clip"  # nothing is said of what is not set


def parse_name(text):
    kind, settings = parse_aggregator(text)
    return kind.name, settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trimmed-mean:fraction=0.7", "setting fraction=0.7 of aggregator 'trimmed-mean': .* less than 0.5"),
        ("trimmed-mean:part=0.1", "aggregator 'trimmed-mean' has no setting 'part'"),
        ("mean:norm=1", "aggregator 'mean' has no setting 'norm'; it has none"),
        ("trimed-mean", "did you mean 'trimmed-mean'"),
        ("krum:fraction", "write it as NAME or NAME:KEY=VALUE"),
    ],
)
def test_a_wrong_text_is_told_in_one_line(text, message):
    with pytest.raises(UserError, match=message):
        parse_aggregator(text)


def test_updates_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr(gathered, "too_large", lambda shape, dtype: True)
    with pytest.raises(UserError, match=r"aggregator 'median' would hold .* take fewer devices"):
        result("median", ragged_update())
