import math

import pytest
import torch

from federec.evaluation.metrics import CUTS, lightest_quarter, list_metrics, rank_metrics


def test_worked_by_hand():
    """Ranks 0, 3, 9, 10: three hits at 10 (the 1st, 4th and 10th place), two at 5, four at 20."""
    metrics = rank_metrics(torch.tensor([0, 3, 9, 10]))
    assert metrics["hr@5"] == metrics["recall@5"] == 0.5
    assert metrics["hr@10"] == metrics["recall@10"] == 0.75
    assert metrics["hr@20"] == 1.0
    assert metrics["precision@10"] == pytest.approx(0.075)
    assert metrics["mrr@10"] == metrics["map@10"] == pytest.approx((1 + 1 / 4 + 1 / 10) / 4)
    assert metrics["ndcg@5"] == pytest.approx((1 + 1 / math.log2(5)) / 4)
    assert metrics["ndcg@10"] == pytest.approx((1 + 1 / math.log2(5) + 1 / math.log2(11)) / 4)
    assert len(metrics) == 6 * len(CUTS)


def test_best_and_worst():
    assert set(rank_metrics(torch.zeros(3)).values()) == {1.0, 1 / 5, 1 / 10, 1 / 20}
    assert set(rank_metrics(torch.full((3,), 99)).values()) == {0.0}


def test_coverage_and_gini_of_one_list_for_all():
    """Everybody gets items 0..4: 5 of 20 items share all recommendations alike, so Gini = 1 - 5/20."""
    metrics = list_metrics(torch.arange(5).repeat(7, 1), 20)
    assert metrics["coverage@5"] == pytest.approx(0.25)
    assert metrics["gini@5"] == pytest.approx(0.75)


def test_coverage_and_gini_when_all_items_fare_alike():
    metrics = list_metrics(torch.arange(20).view(4, 5), 20)
    assert metrics["coverage@5"] == 1.0
    assert metrics["gini@5"] == pytest.approx(0.0)


def test_gini_against_its_definition():
    """Half the mean absolute difference over the mean: the sum over all pairs."""
    lists = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 5, 6], [0, 7, 1, 2, 8]])
    counts = [3, 3, 3, 1, 1, 1, 1, 1, 1, 0, 0, 0]
    pairs = sum(abs(a - b) for a in counts for b in counts)
    metrics = list_metrics(lists, 12)
    assert metrics["gini@5"] == pytest.approx(pairs / (2 * len(counts) * sum(counts)))
    assert metrics["coverage@5"] == pytest.approx(9 / 12)


def test_places_without_an_item_do_not_count():
    lists = torch.tensor([[3, 1, -1, -1, -1], [3, -1, -1, -1, -1]])
    metrics = list_metrics(lists, 4)
    assert metrics["coverage@5"] == 0.5
    assert metrics["gini@5"] == pytest.approx((4 * 1 + 4 * 2 + 2 * 1) / (2 * 4 * 3))  # counts 0, 1, 0, 2


def test_cuts_look_at_the_head_of_the_list():
    lists = torch.arange(20).view(1, 20)
    metrics = list_metrics(lists, 40)
    assert [metrics[f"coverage@{k}"] for k in CUTS] == pytest.approx([k / 40 for k in CUTS])


@pytest.mark.parametrize(
    ("interactions", "light"),
    [([5, 1, 3, 2], [1]), ([5, 1, 3, 2, 1], [1, 4]), ([2, 2, 2, 2, 2, 2, 2, 2], [0, 1]), ([7], [0])],
)
def test_lightest_quarter(interactions, light):
    assert lightest_quarter(torch.tensor(interactions)).tolist() == light
