import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federec.errors import UserError
from federec.evaluation.metrics import CUTS, lightest_quarter, list_metrics, metric_of, rank_metrics, user_metrics


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


def by_hand(ranks, k):
    """The metrics of one user from a list of hits and misses, as textbooks have them."""
    relevant = np.isin(np.arange(k), ranks).astype(float)
    discount = 1 / np.log2(np.arange(k) + 2)
    hits, n = relevant.sum(), len(ranks)
    precisions = relevant * np.cumsum(relevant) / (np.arange(k) + 1)
    return {
        f"hr@{k}": float(hits > 0),
        f"recall@{k}": hits / n,
        f"precision@{k}": hits / k,
        f"ndcg@{k}": (relevant * discount).sum() / discount[:n].sum(),
        f"mrr@{k}": 1 / (1 + relevant.argmax()) if hits else 0.0,
        f"map@{k}": precisions.sum() / min(n, k),
    }


@given(st.lists(st.lists(st.integers(0, 40), max_size=30, unique=True), min_size=1, max_size=6), st.randoms())
def test_several_items_of_a_user_against_the_textbook(users, random):
    pairs = [(user, rank) for user, ranks in enumerate(users) for rank in ranks]
    random.shuffle(pairs)
    owner, ranks = torch.tensor(pairs, dtype=torch.int32).view(-1, 2).T
    each = user_metrics(ranks, owner, len(users))
    assert len(each) == 6 * len(CUTS)
    for user, own in enumerate(users):
        for k in CUTS:
            for name, value in by_hand(own, k).items() if own else ():
                assert float(each[name][user]) == pytest.approx(value)
        if not own:
            assert all(values[user].isnan() for values in each.values())
    if len(pairs):
        for name, mean in rank_metrics(ranks, owner).items():
            assert mean == pytest.approx(float(each[name].nanmean()))


@given(st.lists(st.integers(-1, 40), min_size=1))
def test_one_item_of_a_user_is_the_special_case(ranks):
    ranks = torch.tensor(ranks)
    each, known = user_metrics(ranks), ranks >= 0
    assert all(values.isnan().tolist() == (~known).tolist() for values in each.values())
    if known.any():
        for name, value in rank_metrics(ranks[known]).items():
            assert float(each[name].nanmean()) == pytest.approx(value)
    for rank, value in zip(ranks[known].tolist(), each["ndcg@10"][known].tolist(), strict=True):
        assert value == (rank < 10) / math.log2(rank + 2)


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


def test_a_metric_is_named_with_its_ranking():
    assert metric_of("full.ndcg@10") == ("full", "ndcg@10")
    assert metric_of("sampled.mrr@20") == ("sampled", "mrr@20")


@pytest.mark.parametrize("name", ["ndcg@10", "full.ndcg@11", "all.hr@10", "", "full", 5])
def test_any_other_name_is_refused_with_a_hint(name):
    with pytest.raises(UserError, match=r"unknown metric '.*(did you mean|write it like)"):
        metric_of(name)
