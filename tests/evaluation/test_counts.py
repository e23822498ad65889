import numpy as np
import torch

from federec.evaluation.counts import report_counts
from federec.evaluation.evaluator import Evaluator


def test_counts_are_of_the_lists_and_the_training_data(random_split):
    split = random_split()
    evaluator = Evaluator(split, 0)
    full = evaluator.full()
    scores = torch.rand(split.data.n_users, split.data.n_items, generator=torch.Generator().manual_seed(0))
    full.add(evaluator.users, lambda items: scores[evaluator.users].gather(1, items))
    found, users = report_counts(full), evaluator.users.tolist()
    assert found["training items"].tolist() == np.diff(split.ptr)[users].tolist()
    assert int(found["interactions"].sum()) == len(split.train)
    listed = full.lists[:, :10]
    assert int(found["recommended"].sum()) == int((listed >= 0).sum())
    lengths = np.diff(split.ptr)[found["examples"][:, 0]].tolist()
    assert lengths == sorted(lengths) and len(lengths) == 5
    for user, *items in found["examples"].tolist():
        assert items == listed[users.index(user)].tolist()
        assert not set(items) & set(split.train[split.ptr[user] : split.ptr[user + 1]].tolist())
