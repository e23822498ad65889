import numpy as np
import pytest
import torch

from federec.evaluation import evaluator as module
from federec.evaluation.evaluator import Evaluator


@pytest.fixture(scope="module")
def split(split_of):
    """A hundred users; two have too short a history to be evaluated, one has every item."""
    rng = np.random.default_rng(0)
    lengths = [1, 2, 60, *rng.integers(3, 30, 97)]
    return split_of([rng.permutation(60)[:n] for n in lengths], 60)


@pytest.fixture(scope="module")
def table(split):
    """A score for every (user, item), with ties."""
    return torch.from_numpy(np.random.default_rng(1).integers(0, 40, (100, 60))).float()


def feed(ranking, table, sizes):
    """Give the users in shuffled parts of the given sizes, as cohorts would."""
    users = torch.from_numpy(np.random.default_rng(2).permutation(len(table)))
    for part in users.split(sizes):
        ranking.add(part, lambda items, part=part: table[part].gather(1, items))
    return ranking.metrics()


def histories(split):
    items = {u: set(split.train[split.ptr[u] : split.ptr[u + 1]].tolist()) for u in range(split.data.n_users)}
    return {u: items[u] for u in split.evaluated.tolist()}


def hit_rate(ranks):
    return sum(rank < 10 for rank in ranks) / len(ranks)


def test_full_ranking_is_a_loop_over_users(split, table, monkeypatch):
    monkeypatch.setitem(module.BLOCK_BYTES, "cpu", 4 * 7 * 9)  # blocks of items smaller than the catalogue
    valid, test = feed(Evaluator(split, 0).full(), table, [1, 9, 40, 50])
    valid_ranks, test_ranks = [], []
    for user, train in histories(split).items():
        row, v, t = table[user].tolist(), int(split.valid[user]), int(split.test[user])
        valid_ranks.append(sum(row[i] >= row[v] for i in range(60) if i not in train and i != v))
        test_ranks.append(sum(row[i] >= row[t] for i in range(60) if i not in train and i not in (v, t)))
    assert valid["full"]["hr@10"] == pytest.approx(hit_rate(valid_ranks))
    assert test["full"]["hr@10"] == pytest.approx(hit_rate(test_ranks))
    assert test["full"]["mrr@20"] == pytest.approx(np.mean([(r < 20) / (r + 1) for r in test_ranks]))
    assert 0 < test["full"]["coverage@10"] <= 1


def test_sampled_ranking_is_a_loop_over_candidates(split, table):
    evaluator = Evaluator(split, 0)
    valid, test = feed(evaluator.sampled(), table, [1, 9, 40, 50])
    for metrics, codes in ((valid, evaluator.candidates.valid), (test, evaluator.candidates.test)):
        ranks = []
        for user, row in zip(evaluator.users.tolist(), codes.tolist(), strict=True):
            target = table[user, row[0]]
            ranks.append(sum(bool(table[user, item] >= target) for item in row[1:] if item >= 0))
        assert metrics["sampled"]["hr@10"] == pytest.approx(hit_rate(ranks))
        assert metrics["sampled"]["ndcg@10"] == pytest.approx(np.mean([(r < 10) / np.log2(r + 2) for r in ranks]))
        lengths = np.diff(split.ptr)[evaluator.users]
        light = sorted(range(len(ranks)), key=lambda row: (lengths[row], row))[:25]
        assert metrics["sampled_light"]["hr@10"] == pytest.approx(hit_rate([ranks[row] for row in light]))


def test_the_way_users_are_fed_does_not_matter(split, table):
    evaluator = Evaluator(split, 0)
    for kind in (evaluator.sampled, evaluator.full):
        assert feed(kind(), table, [100]) == feed(kind(), table, [33, 33, 34]) == feed(kind(), table, 1)


def test_missing_are_the_evaluated_users_not_ranked_yet(split, table):
    evaluator = Evaluator(split, 0)
    ranks = evaluator.sampled()
    assert ranks.missing().tolist() == split.evaluated.tolist() == list(range(2, 100))
    some = torch.tensor([0, 5, 1, 7])
    ranks.add(some, lambda items: table[some].gather(1, items))
    assert ranks.missing().tolist() == [u for u in range(2, 100) if u not in (5, 7)]
    ranks.add(torch.tensor([0, 1]), lambda items: torch.zeros(items.shape))
    assert len(ranks.missing()) == 96


def test_the_best_and_the_worst_score(split):
    evaluator = Evaluator(split, 0)
    ideal = torch.zeros(100, 60)
    ideal[torch.arange(2, 100), split.test[2:]] = 1.0
    assert feed(evaluator.sampled(), ideal, 30)[1]["sampled"]["hr@5"] == 1.0
    assert feed(evaluator.full(), ideal, 30)[1]["full"]["ndcg@5"] == 1.0
    flat = torch.zeros(100, 60)
    assert feed(evaluator.full(), flat, 30)[1]["full"]["hr@10"] == pytest.approx(hit_rate_of_last(split))
    broken = torch.full((100, 60), torch.nan)
    assert feed(evaluator.full(), broken, 30)[1]["full"]["hr@20"] == 0.0


def hit_rate_of_last(split):
    """When all scores are equal the held-out item comes last among what the user has not touched."""
    untouched = [60 - len(train) - 2 for train in histories(split).values()]
    return hit_rate(untouched)
