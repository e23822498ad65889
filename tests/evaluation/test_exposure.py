import torch

from federec.evaluation.evaluator import Evaluator
from federec.evaluation.exposure import exposure


def by_hand(full, split, counted, items, k):
    """Users who do not have an item and get it, and users who do not have it."""
    owned = set(zip(split.data.users.tolist(), split.data.items.tolist(), strict=True))
    hits = users = 0
    for row, user in enumerate(full.of.users.tolist()):
        for item in items.tolist():
            if counted[user] and (user, item) not in owned:
                users += 1
                hits += item in full.lists[row, :k].tolist()
    return hits / users


def test_exposure_counts_users_who_do_not_have_the_item(random_split):
    split = random_split(users=12, items=40)
    torch.manual_seed(0)
    scores = torch.randn(12, 40)
    full = Evaluator(split, 0).full()
    full.add(full.of.users, lambda items: scores[full.of.users].gather(1, items))
    counted = torch.arange(12) % 3 > 0
    for items in (torch.tensor([3]), torch.arange(0, 40, 2)):
        found = exposure(full, counted, items)
        assert found == {f"er@{k}": by_hand(full, split, counted, items, k) for k in (5, 10)}
    assert exposure(full, counted, torch.arange(40))["er@10"] > 0
