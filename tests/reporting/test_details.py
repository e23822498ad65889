import pytest
import torch

from federec.evaluation.metrics import lightest_quarter, rank_metrics, user_metrics
from federec.reporting.details import Group, Tenth, _ndcg, positions_of, quarters, tenths


def test_positions_count_from_one_and_hold_all_items():
    ranks = torch.tensor([0, 1, 4, 5, 9, 10, 24, 24])
    assert positions_of(ranks, 25) == [
        Group("1", 1 / 8),
        Group("2 to 5", 2 / 8),
        Group("6 to 10", 2 / 8),
        Group("11 to 20", 1 / 8),
        Group("21 to 25", 2 / 8),
    ]


@pytest.mark.parametrize("n_items", [1, 2, 5, 10, 11, 1682, 3706, 10**6])
def test_every_rank_is_in_one_group(n_items):
    groups = positions_of(torch.tensor([0, n_items - 1]), n_items)
    assert sum(group.value for group in groups) == 1
    assert groups[-1].name.endswith(f"{n_items:,}")


def test_the_first_quarter_is_that_of_light_users():
    draw = torch.Generator().manual_seed(0)
    ranks, counts = (torch.randint(30, (18,), generator=draw) for _ in range(2))
    found = quarters({"test full": ranks, "test sampled": ranks, "training items": counts})
    light = lightest_quarter(counts)
    assert found[0].value == pytest.approx(rank_metrics(ranks[light])["ndcg@10"])
    assert found[0].name.startswith(str(int(counts.min()))) and found[-1].name.endswith(str(int(counts.max())))
    assert len(found) == 4


def test_quarters_leave_out_users_without_a_test_item():
    full, owner = torch.tensor([0, 1, 2, 3, 0]), torch.tensor([0, 0, 1, 3, 4])
    ranks = {"test full": full, "test owner": owner, "test sampled": torch.tensor([0, 0, -1, 0, 0])}
    found = quarters(ranks | {"training items": torch.tensor([1, 2, 3, 4, 5])})
    assert [group.name for group in found] == ["1", "2", "4", "5"]


@pytest.mark.parametrize("several", [False, True])
def test_ndcg_is_that_of_the_metrics(several):
    draw = torch.Generator().manual_seed(1)
    full, users = torch.randint(-1, 30, (200,), generator=draw), 200
    ranks = {"test full": full, "test sampled": torch.zeros(users)}
    if several:  # some users have many, some none
        ranks["test owner"] = torch.randint(40, (200,), generator=draw).to(torch.int32)
        ranks["test sampled"] = torch.zeros(users := 45)
    expected = user_metrics(full, ranks.get("test owner"), users)["ndcg@10"]
    torch.testing.assert_close(torch.from_numpy(_ndcg(ranks)), expected, equal_nan=True, rtol=1e-12, atol=0)


def test_tenths_are_of_items_by_popularity():
    interactions, recommended = torch.arange(1, 21), torch.zeros(20, dtype=torch.int32)
    recommended[-1], recommended[0] = 3, 1
    found = tenths({"interactions": interactions, "recommended": recommended})
    assert found[0] == Tenth(pytest.approx(39 / 210), 0.75)
    assert found[-1] == Tenth(pytest.approx(3 / 210), 0.25)
    assert sum(part.interactions for part in found) == pytest.approx(1)
