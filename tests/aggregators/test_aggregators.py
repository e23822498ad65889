import pytest
import torch

from federec.aggregators.mean import Mean
from federec.aggregators.registry import AGGREGATORS, aggregator_class
from federec.aggregators.sum import Sum
from federec.aggregators.touched_mean import TouchedMean
from federec.cohort.update import Update
from federec.errors import UserError

TOUCHED = ([[0, 3], [3, 5, 7]], [[3]], [[1, 2], [], [0, 7]])
"""Rows that the devices of three cohorts change; nobody has 4 and 6."""


@pytest.fixture
def updates():
    torch.manual_seed(0)
    found = []
    for touched in TOUCHED:
        ids = torch.tensor([item for items in touched for item in items])
        rows = {"a": torch.randn(len(ids), 3), "b": torch.randn(len(ids), 2)}
        layer = torch.randn(len(touched), 2, 2)
        found.append(Update(8, ids, torch.tensor([len(t) for t in touched]), rows, {"net": layer}))
    return found


@pytest.fixture
def dense(updates):
    """Every device's whole tables: [6, 8, width], zeros where it changed nothing."""
    found = {"a": [], "b": [], "net": []}
    for update in updates:
        for device in range(len(update)):
            mine = update.owner == device
            for name, rows in update.rows.items():
                found[name].append(torch.zeros(8, rows.shape[1]).index_copy_(0, update.ids[mine], rows[mine]))
            found["net"].append(update.layers["net"][device])
    return {name: torch.stack(values) for name, values in found.items()}


def aggregated(kind, updates):
    aggregator = kind(8)
    for update in updates:
        aggregator.add(update)
    return aggregator


def test_mean_is_over_all_devices_where_untouched_rows_count_as_zero(updates, dense):
    result = aggregated(Mean, updates).result()
    assert result.keys() == dense.keys()
    for name, sent in dense.items():
        assert len(sent) == 6
        torch.testing.assert_close(result[name], sent.mean(0))
    assert not result["a"][[4, 6]].any()


def test_sum_is_the_sum(updates, dense):
    result = aggregated(Sum, updates).result()
    for name, sent in dense.items():
        torch.testing.assert_close(result[name], sent.sum(0))


def test_touched_mean_divides_a_row_by_those_who_touched_it(updates, dense):
    result = aggregated(TouchedMean, updates).result()
    assert result.keys() == dense.keys()
    times = torch.tensor([2.0, 1, 1, 3, 1, 1, 1, 2])[:, None]
    for name in ("a", "b"):
        torch.testing.assert_close(result[name], dense[name].sum(0) / times)
    torch.testing.assert_close(result["net"], dense["net"].mean(0))


@pytest.mark.parametrize("name", [name for name, kind in AGGREGATORS.items() if not kind.gathers])
def test_order_and_processes_do_not_matter(name, updates):
    kind = AGGREGATORS[name]
    whole, turned = aggregated(kind, updates), aggregated(kind, updates[::-1])
    merged, other = aggregated(kind, updates[:1]), aggregated(kind, updates[1:])
    merged.merge(other.total, other.devices)
    for value in (turned.result(), merged.result()):
        assert value.keys() == whole.result().keys()
        for key, expected in whole.result().items():
            torch.testing.assert_close(value[key], expected)
    assert whole.devices == turned.devices == merged.devices == 6


@pytest.mark.parametrize("name", [name for name, kind in AGGREGATORS.items() if kind.gathers])
def test_what_is_summed_already_is_refused_where_single_updates_are_needed(name, updates):
    with pytest.raises(UserError, match=f"aggregator '{name}' needs single updates"):
        AGGREGATORS[name](8).merge(aggregated(Sum, updates).total, 6)


@pytest.mark.parametrize("name", [name for name, kind in AGGREGATORS.items() if not kind.gathers])
def test_linear_means_that_the_sum_is_enough(name, updates):
    kind, sum_ = AGGREGATORS[name], aggregated(Sum, updates)
    from_sum = kind(8)
    from_sum.merge(sum_.total, sum_.devices)
    same = all(
        torch.allclose(from_sum.result()[key], value) for key, value in aggregated(kind, updates).result().items()
    )
    assert same == kind.linear


def test_an_update_that_is_a_sum_counts_for_its_devices(updates):
    whole, sum_ = aggregated(Mean, updates), aggregated(Sum, updates)
    everything = torch.arange(8)
    rows, layers = {k: sum_.total[k] for k in ("a", "b")}, {"net": sum_.total["net"][None]}
    hub = Mean(8)
    hub.add(Update(8, everything, torch.tensor([8]), rows, layers), devices=6)
    for key, value in whole.result().items():
        torch.testing.assert_close(hub.result()[key], value)


def test_an_unknown_aggregator_is_told():
    with pytest.raises(UserError, match="unknown aggregator 'meen' - did you mean 'mean'"):
        aggregator_class("meen")
