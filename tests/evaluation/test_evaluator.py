import numpy as np
import pytest
import torch

from federec.data.interactions import Interactions
from federec.data.split import make_split
from federec.errors import UserError
from federec.evaluation import evaluator as module
from federec.evaluation.evaluator import Evaluator
from federec.evaluation.metrics import rank_metrics


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
        row, v, t = table[user].tolist(), *(int(part.first(np.array([user]))[0]) for part in (split.valid, split.test))
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
    ideal[torch.arange(2, 100), split.test.items] = 1.0
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


@pytest.fixture(scope="module")
def parted():
    """Users with several, one or no items in each part, repeated pairs, cold users and cold items."""
    rng = np.random.default_rng(5)
    users, items = rng.integers(0, 40, 700), rng.integers(0, 60, 700)
    parts = rng.choice([0, 1, 2], 700, p=[0.6, 0.2, 0.2])
    parts[users >= 36] = 2  # cold users
    parts[users < 3] = 0  # not evaluated
    items[users < 3] %= 57
    parts[items >= 57] = 2  # cold items
    parts[(users >= 3) & (users < 6) & (parts == 1)] = 0  # no validation
    return make_split(
        Interactions(
            *("parted", users.astype(np.int32), items.astype(np.int32), np.arange(40), np.arange(60)),
            times=np.arange(700.0),
            parts=parts.astype(np.int8),
        )
    )


def lists_of(split, table):
    """For each user: the distinct held-out items of test, and the list they are places of."""
    for user in range(split.data.n_users):
        train = split.train[split.ptr[user] : split.ptr[user + 1]].tolist()
        valid, test = (part.items[part.ptr[user] : part.ptr[user + 1]].tolist() for part in (split.valid, split.test))
        closed = {*train, *valid} - {*test}
        listed = sorted(set(range(60)) - closed, key=lambda item, user=user: -float(table[user, item]))
        yield user, list(dict.fromkeys(test)), listed, not train


def test_users_with_several_held_out_items(parted, monkeypatch):
    monkeypatch.setitem(module.BLOCK_BYTES, "cpu", 4 * 7 * 9)
    table = torch.from_numpy(np.random.default_rng(1).permutation(40 * 60).reshape(40, 60)).float()
    _, test = feed(Evaluator(parted, 0).full(), table, [1, 9, 20, 10])
    everyone, cold_users, cold_items = [], [], []
    for user, held, listed, cold in lists_of(parted, table):
        ranks = [listed.index(item) for item in held]
        everyone += [(user, rank) for rank in ranks]
        cold_users += [(user, rank) for rank in ranks if cold]
        cold_items += [(user, rank) for rank, item in zip(ranks, held, strict=True) if item >= 57]
    names = {"full": everyone, "full_cold_users": cold_users, "full_cold_items": cold_items}
    for name, pairs in names.items():
        owner, ranks = torch.tensor(pairs).T
        expected = rank_metrics(ranks, owner)
        assert {key: test[name][key] for key in expected} == pytest.approx(expected)
    assert len({user for user, _ in cold_users}) == 4 and len(cold_items) > 3
    assert "coverage@10" not in test["full_cold_users"]


def test_sampled_ranks_are_those_of_the_first_held_out_items(parted):
    table = torch.from_numpy(np.random.default_rng(1).permutation(40 * 60).reshape(40, 60)).float()
    evaluator = Evaluator(parted, 0)
    ranks = evaluator.sampled()
    valid, test = feed(ranks, table, [1, 9, 20, 10])
    assert evaluator.users.tolist() == list(range(3, 40)) and len(ranks.missing()) == 0
    has = parted.valid.counts[3:] > 0
    assert (ranks.valid >= 0).tolist() == has.tolist() and not has.all()
    assert (ranks.test >= 0).tolist() == (parted.test.counts[3:] > 0).tolist()
    assert valid["sampled"] == rank_metrics(ranks.valid[torch.from_numpy(has)])
    for row in np.flatnonzero(has):
        first, *others = evaluator.candidates.valid[row].tolist()
        assert first == parted.valid.items[parted.valid.ptr[row + 3]]
        better = sum(bool(table[row + 3, item] >= table[row + 3, first]) for item in others if item >= 0)
        assert ranks.valid[row] == better
    assert 0 < test["sampled"]["hr@10"] <= 1


def test_the_light_users_of_a_part_have_items_in_it(parted):
    evaluator = Evaluator(parted, 0)
    for part, held in zip(evaluator.parts, (parted.valid, parted.test), strict=True):
        having = np.flatnonzero(held.counts[3:])
        lengths = np.diff(parted.ptr)[3:]
        expected = sorted(having, key=lambda row, lengths=lengths: (lengths[row], row))[: -(-len(having) // 4)]
        assert sorted(part.light.tolist()) == sorted(int(row) for row in expected)


def test_without_cold_pairs_nothing_is_said_of_them(split, table):
    _, test = feed(Evaluator(split, 0).full(), table, 50)
    assert set(test) == {"full", "full_light"} | ({"full_cold_items"} if split.cold[split.test.items].any() else set())


def test_a_sample_of_users_needs_both_parts(parted):
    with pytest.raises(UserError, match="none of the 1 users drawn has both parts to evaluate; raise --evaluate-users"):
        for seed in range(50):  # one of them draws a user without validation
            Evaluator(parted, seed, most=1)
